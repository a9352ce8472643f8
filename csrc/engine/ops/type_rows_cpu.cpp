#include "engine/ops/cpu.hpp"
#include "engine/ops/type_rows.hpp"

namespace mdcg {

namespace {

template <typename T>
class CpuTypeRows : public CpuOp<T> {
public:
    explicit CpuTypeRows(const TypeRowsSpec& spec) : out_(spec.out), table_(spec.rows<T>()) {}

    void forward(Worker<T>& worker, Range nodes) const override {
        const std::int64_t width = out_.rows.width;
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            std::copy_n(table_.data() + worker.types[n] * width, width, worker.value(out_, n));
    }
    void backward(Worker<T>&, Range) const override {}

private:
    const Operand& out_;
    std::vector<T> table_;  // [types][width]
};

const RegisterOp<TypeRowsSpec, CpuTypeRows> registered{"type_rows"};

}  // namespace

}  // namespace mdcg
