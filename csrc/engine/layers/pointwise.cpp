// Layers that treat every node by itself: scale, normalize, product, sum.
#include "engine/layers/node_fields.hpp"

namespace mdcg {

namespace {

// Row times the number of its type.
template <typename T>
class Scale : public UnaryLayer<T> {
public:
    explicit Scale(const LayerSpec& spec) : UnaryLayer<T>(spec) {
        expect_same_irreps(spec.fields, this->x_, this->out_);
        factor_ = one_or_by_type<T>(spec, "factor");
        typed_ = factor_.size() != 1;
    }
    std::vector<int> kept() const override { return {}; }
    void forward(Worker<T>& worker, Range nodes) const override {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            simd<T>().scale(this->x_.rows.width, factor(worker, n), this->x(worker, n),
                            this->out(worker, n));
    }
    void backward(Worker<T>& worker, Range nodes) const override {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            simd<T>().add_scaled(this->x_.rows.width, factor(worker, n), this->dout(worker, n),
                                 this->dx(worker, n));
    }

private:
    T factor(const Worker<T>& worker, std::int64_t n) const {
        return factor_[typed_ ? static_cast<std::size_t>(worker.types[n]) : 0];
    }
    std::vector<T> factor_;
    bool typed_;
};

// out = x / (density * beta + alpha)
template <typename T>
class Normalize : public UnaryLayer<T> {
public:
    explicit Normalize(const LayerSpec& spec)
        : Normalize(spec, NormalizeFields(spec, spec.operand("x"), spec.operand("out"))) {}
    std::vector<int> kept() const override { return {this->x_.id, density_.id}; }
    std::vector<Operand*> inputs() override { return {&this->x_, &density_}; }
    void forward(Worker<T>& worker, Range nodes) const override {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            simd<T>().scale(this->x_.rows.width, factor(worker, n), this->x(worker, n),
                            this->out(worker, n));
    }
    void backward(Worker<T>& worker, Range nodes) const override {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            const T s = factor(worker, n);
            const std::int64_t width = this->x_.rows.width;
            if (this->x_.needs_gradient)
                simd<T>().add_scaled(width, s, this->dout(worker, n), this->dx(worker, n));
            if (!density_.needs_gradient) continue;
            T* d = worker.gradient(density_) + n * density_.rows.width;
            if (!density_.accumulate) std::fill(d, d + density_.rows.width, T(0));
            d[0] -= beta_ * s * s * simd<T>().dot(width, this->x(worker, n), this->dout(worker, n));
        }
    }

private:
    Normalize(const LayerSpec& spec, const NormalizeFields& fields)
        : UnaryLayer<T>(spec),
          density_(fields.density),
          alpha_(static_cast<T>(fields.alpha)),
          beta_(static_cast<T>(fields.beta)) {}
    T factor(const Worker<T>& worker, std::int64_t n) const {
        return T(1) / (beta_ * worker.value(density_)[n * density_.rows.width] + alpha_);
    }
    Operand density_;
    T alpha_, beta_;
};

// out = x * y, item by item; only scalars multiply to an irrep of their own.
template <typename T>
class Product : public UnaryLayer<T> {
public:
    explicit Product(const LayerSpec& spec)
        : UnaryLayer<T>(spec), y_(product_factor(spec, this->x_, this->out_)) {}
    std::vector<int> kept() const override { return {this->x_.id, y_.id}; }
    std::vector<Operand*> inputs() override { return {&this->x_, &y_}; }
    void forward(Worker<T>& worker, Range nodes) const override {
        const std::int64_t width = y_.rows.width;
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            T* out = this->out(worker, n);
            std::copy_n(this->x(worker, n), width, out);
            simd<T>().multiply(width, worker.value(y_) + n * width, out);
        }
    }
    void backward(Worker<T>& worker, Range nodes) const override {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            if (this->x_.needs_gradient) add(worker, n, this->x_, y_);
            if (y_.needs_gradient) add(worker, n, y_, this->x_);
        }
    }

private:
    void add(const Worker<T>& worker, std::int64_t n, const Operand& to, const Operand& by) const {
        const std::int64_t width = to.rows.width;
        T* d = worker.gradient(to) + n * width;
        const T *g = this->dout(worker, n), *other = worker.value(by) + n * width;
        for (std::int64_t i = 0; i < width; ++i)
            d[i] = (to.accumulate ? d[i] : T(0)) + g[i] * other[i];
    }
    Operand y_;
};

template <typename T>
class Sum : public Layer<T> {
public:
    explicit Sum(const LayerSpec& spec) : out_(spec.operand("out")), x_(sum_terms(spec, out_)) {}
    std::vector<int> kept() const override { return {}; }
    std::vector<Operand*> inputs() override {
        std::vector<Operand*> all;
        for (Operand& x : x_) all.push_back(&x);
        return all;
    }
    std::vector<Operand*> outputs() override { return {&out_}; }
    void forward(Worker<T>& worker, Range nodes) const override {
        const std::int64_t width = out_.rows.width;
        const std::int64_t first = nodes.begin * width, count = (nodes.end - nodes.begin) * width;
        T* out = worker.value(out_) + first;
        std::copy_n(worker.value(x_[0]) + first, count, out);
        for (std::size_t i = 1; i < x_.size(); ++i)
            simd<T>().add_scaled(count, T(1), worker.value(x_[i]) + first, out);
    }
    void backward(Worker<T>& worker, Range nodes) const override {
        const std::int64_t width = out_.rows.width;
        const std::int64_t first = nodes.begin * width, count = (nodes.end - nodes.begin) * width;
        const T* g = worker.gradient(out_) + first;
        for (const Operand& x : x_) {
            if (!x.needs_gradient) continue;
            T* d = worker.gradient(x) + first;
            if (x.accumulate)
                simd<T>().add_scaled(count, T(1), g, d);
            else
                std::copy_n(g, count, d);
        }
    }

private:
    Operand out_;
    std::vector<Operand> x_;
};

template <template <typename> class L, typename T>
std::unique_ptr<Layer<T>> make(const LayerSpec& spec) {
    return std::make_unique<L<T>>(spec);
}
const RegisterLayer scale{"scale", &make<Scale, float>, &make<Scale, double>};
const RegisterLayer normalize{"normalize", &make<Normalize, float>, &make<Normalize, double>};
const RegisterLayer product{"product", &make<Product, float>, &make<Product, double>};
const RegisterLayer sum{"sum", &make<Sum, float>, &make<Sum, double>};

}  // namespace

}  // namespace mdcg
