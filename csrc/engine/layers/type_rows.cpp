// out[n] = table[type of n]
#include "engine/layers/node_fields.hpp"

namespace mdcg {

namespace {

template <typename T>
class TypeRows : public Layer<T> {
public:
    explicit TypeRows(const LayerSpec& spec)
        : out_(spec.operand("out")), table_(type_table<T>(spec, out_)) {}
    std::vector<int> kept() const override { return {}; }
    std::vector<Operand*> inputs() override { return {}; }
    std::vector<Operand*> outputs() override { return {&out_}; }

    void forward(Worker<T>& worker, Range nodes) const override {
        const std::int64_t width = out_.rows.width;
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            const T* row = table_.data() + worker.types[n] * width;
            std::copy(row, row + width, worker.value(out_) + n * width);
        }
    }
    void backward(Worker<T>&, Range) const override {}

private:
    Operand out_;
    std::vector<T> table_;  // [types][width]
};

template <typename T>
std::unique_ptr<Layer<T>> make(const LayerSpec& spec) {
    return std::make_unique<TypeRows<T>>(spec);
}
const RegisterLayer registered{"type_rows", &make<float>, &make<double>};

}  // namespace

}  // namespace mdcg
