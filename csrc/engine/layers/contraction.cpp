// Symmetric contraction: polynomials of a node's features, channel by channel, with coefficients of
// its type. Generated kernel, or the lists of monomials in order.
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/contraction_kernel.hpp"
#include "engine/error.hpp"
#include "engine/kernels.hpp"
#include "engine/layers/node_layer.hpp"
#include "engine/limits.hpp"

namespace mdcg {

namespace {

// The lists behind Monomials.
template <typename T>
struct MonomialLists {
    std::vector<std::int32_t> factor_ptr{0}, factor, entry_ptr{0}, coefficient, out;
    std::vector<T> value;
    Monomials<T> view(std::int64_t stride) const {
        return {static_cast<std::int64_t>(factor_ptr.size()) - 1,
                factor_ptr.data(),
                factor.data(),
                entry_ptr.data(),
                coefficient.data(),
                out.data(),
                value.data(),
                stride};
    }
};

template <typename T>
class Contraction : public UnaryLayer<T> {
public:
    explicit Contraction(const LayerSpec& spec)
        : UnaryLayer<T>(spec),
          kernel_(spec.fields.text("kernel", "")),
          where_(spec.fields.where()) {
        const Fields problem = spec.fields.object("problem");
        if (problem.text("kind") != "symmetric_contraction" ||
            problem.integer("format", 1, 1 << 30) != 1)
            spec.fields.fail("problem", problem.text("kind"), "symmetric_contraction of format 1");
        if (!same_irreps(Rows::parse(problem.text("irreps_in"), row_align<T>()), x_.rows) ||
            !same_irreps(Rows::parse(problem.text("irreps_out"), row_align<T>()), out_.rows))
            spec.fields.fail("problem",
                             problem.text("irreps_in") + " -> " + problem.text("irreps_out"),
                             "the irreps of x and out");
        for (const Rows* rows : {&x_.rows, &out_.rows})
            for (const Block& block : rows->blocks)
                if (block.mul != x_.rows.blocks[0].mul)
                    spec.fields.fail("has blocks of " + std::to_string(block.mul) + " and " +
                                     std::to_string(x_.rows.blocks[0].mul) +
                                     " channels, expected one number");
        stride_ = x_.rows.blocks[0].stride;
        read_polynomials(problem);
        read_coefficients(spec);
    }

    std::vector<int> kept() const override { return {x_.id}; }

    void prepare(KernelLoader& loader) override {
        if (kernel_.empty()) return;
        const SharedLibrary* library = loader.load(kernel_);
        if (library == nullptr || !has_symbols(*library,
                                               {"mdcg_contraction_info", "mdcg_contraction_forward",
                                                "mdcg_contraction_backward"},
                                               loader, kernel_))
            return;
        const auto* info =
            static_cast<const ContractionInfo*>(library->symbol("mdcg_contraction_info"));
        if (info->abi != MDCG_CONTRACTION_ABI || info->item_bytes != sizeof(T) ||
            info->x_width != x_.rows.width || info->out_width != out_.rows.width ||
            info->coefficient_width != width_ || info->num_coefficients != num_coefficients_)
            throw EngineError(ErrorKind::compiler,
                              where_ + ": kernel " + kernel_ +
                                  " was made for another contraction or version: convert the "
                                  "model again");
        forward_ =
            reinterpret_cast<ContractionFunction<T>>(library->symbol("mdcg_contraction_forward"));
        backward_ =
            reinterpret_cast<ContractionFunction<T>>(library->symbol("mdcg_contraction_backward"));
    }

    void forward(Worker<T>& worker, Range nodes) const override {
        if (forward_ != nullptr) {
            const ContractionBlock<T> block = this->block(worker, nodes);
            return forward_(&block);
        }
        const Monomials<T> monomials = lists_.view(stride_);
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            T* out = this->out(worker, n);
            std::fill(out, out + out_.rows.width, T(0));
            simd<T>().contract(monomials, this->x(worker, n), coefficients(worker, n), out);
        }
    }

    void backward(Worker<T>& worker, Range nodes) const override {
        if (backward_ != nullptr) {
            const ContractionBlock<T> block = this->block(worker, nodes);
            return backward_(&block);
        }
        const Monomials<T> monomials = lists_.view(stride_);
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            simd<T>().contract_backward(monomials, this->x(worker, n), coefficients(worker, n),
                                        this->dout(worker, n), this->dx(worker, n));
    }

private:
    using UnaryLayer<T>::x_;
    using UnaryLayer<T>::out_;

    const T* coefficients(const Worker<T>& worker, std::int64_t n) const {
        return coefficients_.data() + (typed_ ? worker.types[n] * width_ : 0);
    }

    ContractionBlock<T> block(const Worker<T>& worker, Range nodes) const {
        ContractionBlock<T> block{};
        block.num_nodes = nodes.end - nodes.begin;
        block.types = worker.types + nodes.begin;
        block.x = this->x(worker, nodes.begin);
        block.coefficients = coefficients_.data();
        block.typed = typed_ ? 1 : 0;
        block.out = worker.values[static_cast<std::size_t>(out_.id)] == nullptr
                        ? nullptr
                        : this->out(worker, nodes.begin);
        if (x_.needs_gradient && worker.edge_gradient != nullptr) {
            block.g = this->dout(worker, nodes.begin);
            block.dx = worker.gradient(x_) + nodes.begin * x_.rows.width;
            block.accumulate = x_.accumulate ? 1 : 0;
        }
        return block;
    }

    // Component c of a row, counted over all blocks, starts here.
    static std::vector<std::int32_t> component_offsets(const Rows& rows) {
        std::vector<std::int32_t> offsets;
        for (const Block& block : rows.blocks)
            for (int m = 0; m < block.dim(); ++m)
                offsets.push_back(block.offset + m * block.stride);
        return offsets;
    }

    void read_polynomials(const Fields& problem) {
        const auto& list = problem.json("polynomials");
        const std::vector<std::int32_t> in = component_offsets(x_.rows);
        struct Entry {
            std::int32_t coefficient, out;
            T value;
        };
        std::map<std::vector<std::int32_t>, std::vector<Entry>> found;
        const auto bad = [&problem]() {
            problem.fail("polynomials", "damaged", "[block, [[[factor, index, ...], ...], ...]]");
        };
        if (!list.is_array()) bad();
        for (const auto& polynomial : list) {
            if (!polynomial.is_array() || polynomial.size() != 2 ||
                !polynomial[0].is_number_unsigned() || !polynomial[1].is_array() ||
                polynomial[0].template get<std::uint64_t>() >= out_.rows.blocks.size())
                bad();
            const Block& block = out_.rows.blocks[polynomial[0].template get<std::size_t>()];
            if (polynomial[1].size() != static_cast<std::size_t>(block.dim())) bad();
            int m = 0;
            for (const auto& terms : polynomial[1]) {
                if (!terms.is_array()) bad();
                for (const auto& term : terms) {
                    if (!term.is_array() || term.size() < 2 || term.size() > 9 ||
                        !term[0].is_string())
                        bad();
                    std::vector<std::int32_t> factors;
                    for (std::size_t i = 1; i < term.size(); ++i) {
                        if (!term[i].is_number_unsigned() ||
                            term[i].template get<std::uint64_t>() >= in.size())
                            bad();
                        factors.push_back(in[term[i].template get<std::size_t>()]);
                    }
                    found[factors].push_back(
                        {static_cast<std::int32_t>(num_coefficients_ * stride_),
                         block.offset + m * block.stride,
                         static_cast<T>(parse_hex(term[0].template get<std::string>()))});
                }
                ++m;
            }
            ++num_coefficients_;
            if (num_coefficients_ * stride_ > limits::MAX_ROW_ITEMS)
                problem.fail("polynomials",
                             "more than " + std::to_string(limits::MAX_ROW_ITEMS) + " coefficients",
                             "fewer");
        }
        for (const auto& [factors, entries] : found) {
            lists_.factor.insert(lists_.factor.end(), factors.begin(), factors.end());
            lists_.factor_ptr.push_back(static_cast<std::int32_t>(lists_.factor.size()));
            for (const Entry& entry : entries) {
                lists_.coefficient.push_back(entry.coefficient);
                lists_.out.push_back(entry.out);
                lists_.value.push_back(entry.value);
            }
            lists_.entry_ptr.push_back(static_cast<std::int32_t>(lists_.value.size()));
        }
        width_ = num_coefficients_ * stride_;
    }

    void read_coefficients(const LayerSpec& spec) {
        const int mul = x_.rows.blocks[0].mul, types = spec.info.num_types();
        const Tensor& tensor = spec.fields.tensor("coefficients", {-1, num_coefficients_, mul});
        if (tensor.shape[0] != 1 && tensor.shape[0] != types)
            spec.fields.fail("coefficients", "a tensor of shape " + tensor.shape_text(),
                             "1 or " + std::to_string(types) + " types");
        typed_ = tensor.shape[0] != 1;
        const std::vector<T> values =
            spec.fields.values<T>("coefficients", {-1, num_coefficients_, mul});
        const auto rows = static_cast<std::size_t>(tensor.shape[0] * num_coefficients_);
        coefficients_.resize(rows * static_cast<std::size_t>(stride_));
        for (std::size_t r = 0; r < rows; ++r)
            std::copy_n(values.data() + r * static_cast<std::size_t>(mul), mul,
                        coefficients_.data() + r * static_cast<std::size_t>(stride_));
    }

    std::string kernel_, where_;
    std::int64_t stride_ = 0, num_coefficients_ = 0, width_ = 0;  // width: items of one type
    bool typed_ = false;
    MonomialLists<T> lists_;
    AlignedArray<T> coefficients_;
    ContractionFunction<T> forward_ = nullptr, backward_ = nullptr;
};

template <typename T>
std::unique_ptr<Layer<T>> make(const LayerSpec& spec) {
    return std::make_unique<Contraction<T>>(spec);
}
const RegisterLayer registered{"contraction", &make<float>, &make<double>};

}  // namespace

}  // namespace mdcg
