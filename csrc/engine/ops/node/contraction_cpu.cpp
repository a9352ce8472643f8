// Generated kernel, or the lists of monomials in order.
#include "core/integers.hpp"
#include "engine/cpu_op.hpp"
#include "engine/error.hpp"
#include "engine/kernels/kernel_store.hpp"
#include "engine/ops/node/contraction.hpp"
#include "kernels/contraction_kernel.hpp"

namespace mdcg {

namespace {

template <typename T>
class CpuContraction : public CpuOp<T> {
public:
    explicit CpuContraction(const ContractionSpec& spec)
        : spec_(spec),
          x_(spec.x),
          out_(spec.out),
          coefficients_(spec.coefficients<T>()),
          value_(spec.monomials.value.begin(), spec.monomials.value.end()) {
        const ContractionSpec::Monomials& lists = spec.monomials;
        monomials_ = {static_cast<std::int64_t>(lists.factor_ptr.size()) - 1,
                      lists.factor_ptr.data(),
                      lists.factor.data(),
                      lists.entry_ptr.data(),
                      lists.coefficient.data(),
                      lists.out_item.data(),
                      value_.data(),
                      spec.stride};
    }

    void prepare(KernelStore& kernels) override {
        const SharedLibrary* library = kernels.load(
            spec_.index, spec_.name,
            {"mdcg_contraction_info", "mdcg_contraction_forward", "mdcg_contraction_backward"});
        if (library == nullptr) return;
        const auto* info =
            static_cast<const ContractionInfo*>(library->symbol("mdcg_contraction_info"));
        if (info->abi != MDCG_CONTRACTION_ABI || info->item_bytes != sizeof(T) ||
            info->x_width != x_.rows.width || info->out_width != out_.rows.width ||
            info->coefficient_width != spec_.width ||
            info->num_coefficients != spec_.num_coefficients)
            throw EngineError(ErrorKind::compiler,
                              spec_.fields.where() +
                                  ": its kernel was made for another contraction or another "
                                  "version of mdcg: make the kernels again (python -m mdcg "
                                  "kernels)");
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
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            T* out = worker.value(out_, n);
            std::fill(out, out + out_.rows.width, T(0));
            simd<T>().contract(monomials_, worker.value(x_, n), coefficients(worker, n), out);
        }
    }

    void backward(Worker<T>& worker, Range nodes) const override {
        if (backward_ != nullptr) {
            const ContractionBlock<T> block = this->block(worker, nodes);
            return backward_(&block);
        }
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            simd<T>().contract_backward(monomials_, worker.value(x_, n), coefficients(worker, n),
                                        worker.gradient(out_, n), worker.started_gradient(x_, n));
    }

private:
    bool typed() const { return spec_.num_sets > 1; }

    const T* coefficients(const Worker<T>& worker, std::int64_t n) const {
        return coefficients_.data() + (typed() ? worker.types[n] * spec_.width : 0);
    }

    ContractionBlock<T> block(const Worker<T>& worker, Range nodes) const {
        ContractionBlock<T> block{};
        block.num_nodes = nodes.end - nodes.begin;
        block.types = worker.types + nodes.begin;
        block.x = worker.value(x_, nodes.begin);
        block.coefficients = coefficients_.data();
        block.typed = typed() ? 1 : 0;
        block.out =
            worker.values[size(out_.id)] == nullptr ? nullptr : worker.value(out_, nodes.begin);
        if (x_.needs_gradient && worker.edge_gradient != nullptr) {
            block.g = worker.gradient(out_, nodes.begin);
            block.dx = worker.gradient(x_, nodes.begin);
            block.accumulate = x_.accumulate ? 1 : 0;
        }
        return block;
    }

    const ContractionSpec& spec_;
    const Operand &x_, &out_;
    AlignedArray<T> coefficients_;
    std::vector<T> value_;
    Monomials<T> monomials_;
    ContractionFunction<T> forward_ = nullptr, backward_ = nullptr;
};

const RegisterOp<ContractionSpec, CpuContraction> registered{"contraction"};

}  // namespace

}  // namespace mdcg
