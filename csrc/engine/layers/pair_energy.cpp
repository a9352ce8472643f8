// Energies of pairs: screened nuclear repulsion (Ziegler, Biersack, Littmark), with a cutoff.
#include <algorithm>
#include <cmath>

#include "engine/edges/radial.hpp"
#include "engine/graph.hpp"
#include "engine/limits.hpp"
#include "engine/registry.hpp"

namespace mdcg {

namespace {

// E_i += sum_e factor / r * sum_k c_k exp(-x_k r / a) * cutoff(r / r_max); factor, a and r_max by
// types of receiver and sender [T][T] (r_max may be one number), x_k > 0.
template <typename T>
class PairEnergy : public Layer<T> {
public:
    explicit PairEnergy(const LayerSpec& spec) {
        const Fields& fields = spec.fields;
        if (fields.text("kind") != "zbl")
            fields.fail("kind", "'" + fields.text("kind") + "'", "zbl");
        types_ = spec.info.num_types();
        const std::int64_t n = types_;
        factor_ = fields.values<double>("factor", {n, n});
        a_ = fields.values<double>("a", {n, n});
        if (fields.is_text("r_max"))
            r_max_ = fields.values<double>("r_max", {n, n});
        else
            r_max_.assign(static_cast<std::size_t>(n * n), fields.number("r_max"));
        coefficients_ = fields.numbers("coefficients");
        exponents_ = fields.numbers("exponents");
        if (coefficients_.size() > limits::MAX_SCREENING_TERMS)
            fields.fail("coefficients", std::to_string(coefficients_.size()) + " numbers",
                        "at most " + std::to_string(limits::MAX_SCREENING_TERMS));
        if (coefficients_.size() != exponents_.size())
            fields.fail("exponents", std::to_string(exponents_.size()) + " numbers",
                        std::to_string(coefficients_.size()) + ", as many as coefficients");
        p_ = fields.number("p");
        check_cutoff_power(fields, p_);
        for (std::size_t i = 0; i < a_.size(); ++i)
            if (!(a_[i] > 0) || !(r_max_[i] > 0)) fields.fail("a and r_max must be over 0");
    }

    Walk forward_walk() const override { return Walk::receivers; }
    Walk backward_walk() const override { return Walk::receivers; }
    std::vector<int> kept() const override { return {}; }
    std::vector<Operand*> inputs() override { return {}; }
    std::vector<Operand*> outputs() override { return {}; }

    void forward(Worker<T>& worker, Range nodes) const override { walk(worker, nodes, false); }
    void backward(Worker<T>& worker, Range nodes) const override { walk(worker, nodes, true); }

private:
    void walk(Worker<T>& worker, Range nodes, bool backward) const;

    std::int64_t types_;
    std::vector<double> factor_, a_, r_max_, coefficients_, exponents_;
    double p_;
};

template <typename T>
void PairEnergy<T>::walk(Worker<T>& worker, Range nodes, bool backward) const {
    const Graph& graph = *worker.graph;
    for (std::int64_t node = nodes.begin; node < nodes.end; ++node) {
        const auto row = static_cast<std::size_t>(node);
        double energy = 0;
        for (std::int64_t e = graph.row_ptr[row]; e < graph.row_ptr[row + 1]; ++e) {
            const auto at = static_cast<std::size_t>(e);
            const auto pair = static_cast<std::size_t>(worker.types[node] * types_ +
                                                       worker.types[graph.sender[at]]);
            const double* v = graph.vec.data() + 3 * at;
            const double r = std::max(std::sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]), 1e-8);
            if (!(r < r_max_[pair])) continue;
            double c, c_slope;
            polynomial_cutoff(p_, r / r_max_[pair], c, c_slope);
            double screen = 0, screen_slope = 0;
            for (std::size_t k = 0; k < coefficients_.size(); ++k) {
                const double decay = exponents_[k] / a_[pair];
                const double term = coefficients_[k] * std::exp(-decay * r);
                screen += term;
                screen_slope -= decay * term;
            }
            const double scale = factor_[pair] / r;
            if (!backward) {
                energy += scale * screen * c;
                continue;
            }
            const double slope =
                scale * (screen_slope * c + screen * c_slope / r_max_[pair] - screen * c / r);
            for (std::size_t k = 0; k < 3; ++k)
                worker.edge_gradient[3 * at + k] += static_cast<T>(slope * v[k] / r);
        }
        if (!backward) worker.energies[node] += energy;
    }
}

template <typename T>
std::unique_ptr<Layer<T>> make_pair_energy(const LayerSpec& spec) {
    return std::make_unique<PairEnergy<T>>(spec);
}

const RegisterLayer registered{"pair_energy", &make_pair_energy<float>, &make_pair_energy<double>};

}  // namespace

}  // namespace mdcg
