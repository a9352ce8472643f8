#include "engine/ops/type_sums.hpp"

#include <algorithm>

#include "core/integers.hpp"

namespace mdcg {

namespace {

constexpr int MAX_L = 4;

// The one number that a path of scalars multiplies every component with; false: there is none.
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

}  // namespace

template <typename T>
bool sums_by_type(const ConvSpec& spec) {
    if (spec.x.present() || spec.sender.present() || spec.receiver.present()) return false;
    double number = 0;
    for (const GenericPath& path : spec.description.paths)
        if (!coefficient<T>(spec.description, path, number)) return false;
    return spec.description.l_max <= MAX_L;
}

bool has_path_to(const ConvSpec& spec, const Block& block) {
    const auto& paths = spec.description.paths;
    return std::any_of(paths.begin(), paths.end(),
                       [&](const GenericPath& path) { return path.out_offset == block.offset; });
}

template <typename T>
std::vector<std::vector<double>> type_matrices(const ConvSpec& spec,
                                               const std::vector<std::int32_t>& present,
                                               const AlignedArray<T>& x_table) {
    const ConvDescription& description = spec.description;
    const std::vector<double> last = spec.radial.last();
    const std::size_t outputs = description.weights.columns.size();
    const std::size_t depth = present.size() * size(spec.hidden_stride);
    std::vector<std::vector<double>> found;
    for (const Block& block : description.out.blocks) {
        if (!has_path_to(spec, block)) {
            found.emplace_back();
            continue;
        }
        std::vector<double> matrix(depth * size(block.mul), 0.0);
        std::size_t weight = 0;
        for (const GenericPath& path : description.paths) {
            double factor = 0;
            coefficient<T>(description, path, factor);
            if (path.out_offset == block.offset)
                for (std::size_t t = 0; t < present.size(); ++t) {
                    const T* x = x_table.data() + std::int64_t(present[t]) * description.x.width +
                                 path.x_offset;
                    for (std::size_t k = 0; k < size(spec.units); ++k)
                        for (std::size_t u = 0; u < size(path.mul); ++u)
                            matrix[(t * size(spec.hidden_stride) + k) * size(path.mul) + u] +=
                                factor * static_cast<double>(x[u]) * last[k * outputs + weight + u];
                }
            weight += size(path.mul);
        }
        found.push_back(std::move(matrix));
    }
    return found;
}

template bool sums_by_type<float>(const ConvSpec&);
template bool sums_by_type<double>(const ConvSpec&);
template std::vector<std::vector<double>> type_matrices(const ConvSpec&,
                                                        const std::vector<std::int32_t>&,
                                                        const AlignedArray<float>&);
template std::vector<std::vector<double>> type_matrices(const ConvSpec&,
                                                        const std::vector<std::int32_t>&,
                                                        const AlignedArray<double>&);

}  // namespace mdcg
