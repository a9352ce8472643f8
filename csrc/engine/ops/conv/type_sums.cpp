#include "engine/ops/conv/type_sums.hpp"

#include <algorithm>
#include <utility>

#include "core/integers.hpp"

namespace mdcg {

namespace {

constexpr int MAX_L = 4;

// Finds the number by which a path of scalars multiplies all components; false: they differ.
template <typename T>
bool coefficient(const ConvDescription& description, const GenericPath& path, double& found) {
    if (path.x_dim != 1 || path.out_dim != path.harmonic_dim ||
        path.pair_end - path.pair_begin != path.out_dim)
        return false;
    for (int i = 0; i < path.out_dim; ++i) {
        const GenericPair& pair = description.pairs[size(path.pair_begin + i)];
        if (pair.term_end - pair.term_begin != 1) return false;
        const GenericTerm<double>& term = description.terms[size(pair.term_begin)];
        if (pair.c != i || term.b != i) return false;
        if (i > 0 && static_cast<double>(static_cast<T>(term.value)) != found) return false;
        found = static_cast<double>(static_cast<T>(term.value));
    }
    return true;
}

// Returns the operation if it is linear, equal for all types, and adds no constants; otherwise
// null.
const LinearSpec* composable(const OpSpec* spec) {
    const auto* const linear = dynamic_cast<const LinearSpec*>(spec);
    if (linear == nullptr || !linear->biases.empty()) return nullptr;
    for (const LinearSpec::Path& path : linear->paths)
        if (path.typed) return nullptr;
    return linear;
}

}  // namespace

template <typename T>
bool sums_by_type(const ConvSpec& spec) {
    if (spec.x.present() || spec.sender.present() || spec.receiver.present()) return false;
    double number = 0;
    for (const GenericPath& path : spec.description.paths)
        if (!coefficient<T>(spec.description, path, number)) return false;
    return spec.description.l_max <= MAX_L;
}

template <typename T>
TypeMatrices<T>::TypeMatrices(const ConvSpec& spec)
    : spec_(spec),
      linear_(composable(spec.only_reader)),
      out_(linear_ != nullptr ? linear_->out : spec.out) {
    for (std::size_t i = 0; i < out_.rows.blocks.size(); ++i) {
        bool written = linear_ == nullptr && has_path_to(out_.rows.blocks[i]);
        if (linear_ != nullptr)
            for (const LinearSpec::Path& path : linear_->paths)
                written =
                    written || (path.out == i && has_path_to(linear_->x.rows.blocks[path.in]));
        if (written) blocks_.push_back(i);
    }
    load_tensors();
}

template <typename T>
void TypeMatrices<T>::load_tensors() {
    x_table_ = spec_.x_table<T>();
    by_type_.clear();
    weights_.clear();
    if (linear_ == nullptr) return;
    for (const LinearSpec::Path& path : linear_->paths)
        weights_.push_back(linear_->fields.read<double>(*path.weight));
}

template <typename T>
bool TypeMatrices<T>::has_path_to(const Block& block) const {
    const auto& paths = spec_.description.paths;
    return std::any_of(paths.begin(), paths.end(),
                       [&](const GenericPath& path) { return path.out_offset == block.offset; });
}

// The matrices of a type for the convolution's own rows.
template <typename T>
typename TypeMatrices<T>::ByBlock TypeMatrices<T>::of_type(std::int32_t type) const {
    const ConvDescription& description = spec_.description;
    const std::vector<double> last = spec_.radial.last();
    const std::size_t outputs = description.weights.columns.size();
    ByBlock found;
    for (const Block& block : description.out.blocks) {
        found.emplace_back();
        if (!has_path_to(block)) continue;
        const std::size_t mul = size(block.mul);
        std::vector<double>& matrix = found.back();
        matrix.assign(size(spec_.hidden_stride) * mul, 0.0);
        std::size_t weight = 0;
        for (const GenericPath& path : description.paths) {
            double factor = 0;
            coefficient<T>(description, path, factor);
            const T* x = x_table_.data() + std::int64_t(type) * description.x.width + path.x_offset;
            if (path.out_offset == block.offset)
                for (std::size_t k = 0; k < size(spec_.units); ++k)
                    for (std::size_t u = 0; u < size(path.mul); ++u)
                        matrix[k * mul + u] +=
                            factor * static_cast<double>(x[u]) * last[k * outputs + weight + u];
            weight += size(path.mul);
        }
    }
    return found;
}

template <typename T>
typename TypeMatrices<T>::ByBlock TypeMatrices<T>::composed_with_linear(
    const ByBlock& matrices) const {
    ByBlock products(out_.rows.blocks.size());
    for (std::size_t i = 0; i < linear_->paths.size(); ++i) {
        const LinearSpec::Path& path = linear_->paths[i];
        const std::vector<double>& matrix = matrices[path.in];
        if (matrix.empty()) continue;
        const std::size_t in = size(linear_->x.rows.blocks[path.in].mul);
        const std::size_t out = size(block(path.out).mul), rows = size(spec_.hidden_stride);
        std::vector<double>& product = products[path.out];
        product.resize(rows * out, 0.0);
        for (std::size_t row = 0; row < rows; ++row)
            for (std::size_t k = 0; k < in; ++k)
                for (std::size_t u = 0; u < out; ++u)
                    product[row * out + u] += matrix[row * in + k] * weights_[i][k * out + u];
    }
    return products;
}

template <typename T>
std::vector<T> TypeMatrices<T>::matrix(const std::vector<std::int32_t>& present,
                                       std::size_t number) {
    std::vector<T> found;
    for (const std::int32_t type : present) {
        auto known = by_type_.find(type);
        if (known == by_type_.end()) {
            ByBlock own = of_type(type);
            if (linear_ != nullptr) own = composed_with_linear(own);
            if (by_type_.size() == MAX_SUMMED_TYPES) by_type_.clear();
            known = by_type_.emplace(type, std::move(own)).first;
        }
        const std::vector<double>& own = known->second[number];
        found.insert(found.end(), own.begin(), own.end());
    }
    return found;
}

template bool sums_by_type<float>(const ConvSpec&);
template bool sums_by_type<double>(const ConvSpec&);
template class TypeMatrices<float>;
template class TypeMatrices<double>;

}  // namespace mdcg
