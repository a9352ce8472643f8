// Symmetric contraction: polynomials of a node's features, channel by channel, with coefficients of
// its type. Generated kernel, or the lists of monomials in order.
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/contraction_kernel.hpp"
#include "engine/error.hpp"
#include "engine/kernels.hpp"
#include "engine/layers/contraction_parts.hpp"

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
          parts_(ContractionParts<T>::read(spec, x_, out_)),
          kernel_(spec.fields.text("kernel", "")),
          where_(spec.fields.where()) {
        read_polynomials(spec.fields.object("problem"));
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
            info->coefficient_width != parts_.width ||
            info->num_coefficients != parts_.num_coefficients)
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
        const Monomials<T> monomials = lists_.view(parts_.stride);
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
        const Monomials<T> monomials = lists_.view(parts_.stride);
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            simd<T>().contract_backward(monomials, this->x(worker, n), coefficients(worker, n),
                                        this->dout(worker, n), this->dx(worker, n));
    }

private:
    using UnaryLayer<T>::x_;
    using UnaryLayer<T>::out_;

    bool typed() const { return parts_.num_types > 1; }

    const T* coefficients(const Worker<T>& worker, std::int64_t n) const {
        return parts_.coefficients.data() + (typed() ? worker.types[n] * parts_.width : 0);
    }

    ContractionBlock<T> block(const Worker<T>& worker, Range nodes) const {
        ContractionBlock<T> block{};
        block.num_nodes = nodes.end - nodes.begin;
        block.types = worker.types + nodes.begin;
        block.x = this->x(worker, nodes.begin);
        block.coefficients = parts_.coefficients.data();
        block.typed = typed() ? 1 : 0;
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
        std::int64_t number = 0;
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
                        {static_cast<std::int32_t>(number * parts_.stride),
                         block.offset + m * block.stride,
                         static_cast<T>(parse_hex(term[0].template get<std::string>()))});
                }
                ++m;
            }
            ++number;
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
    }

    ContractionParts<T> parts_;
    std::string kernel_, where_;
    MonomialLists<T> lists_;
    ContractionFunction<T> forward_ = nullptr, backward_ = nullptr;
};

template <typename T>
std::unique_ptr<Layer<T>> make(const LayerSpec& spec) {
    return std::make_unique<Contraction<T>>(spec);
}
const RegisterLayer registered{"contraction", &make<float>, &make<double>};

}  // namespace

}  // namespace mdcg
