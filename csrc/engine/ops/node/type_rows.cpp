#include "engine/ops/node/type_rows.hpp"

#include "engine/ops/node/row_op.hpp"

namespace mdcg {

namespace {

template <typename T, typename Place>
class TypeRowsOp : public RowOp<T, Place> {
    using Step = typename RowOp<T, Place>::Step;

public:
    explicit TypeRowsOp(const TypeRowsSpec& spec) : out_(spec.out), table_(*this, spec.rows<T>()) {}

    void forward(Step& step, Range nodes) const override {
        this->run(RowFunction::type_rows_forward, step,
                  TypeRows<T>{step.value(out_, nodes.begin), table_.data(),
                              step.types + nodes.begin, nodes.end - nodes.begin, out_.rows.width});
    }
    void backward(Step&, Range) const override {}

private:
    const Operand& out_;
    typename RowOp<T, Place>::template Constants<T> table_;  // [num_types * width]
};

const RegisterRowOp<TypeRowsSpec, TypeRowsOp> registered{"type_rows"};

}  // namespace

}  // namespace mdcg
