#include "engine/ops/system/external_potential.hpp"

#include <algorithm>
#include <string>

#include "core/integers.hpp"
#include "core/text.hpp"
#include "engine/cpu_op.hpp"
#include "engine/error.hpp"

namespace mdcg {

ExternalPotentialSpec::ExternalPotentialSpec(const LayerEntry& given) : WaveSpec(given) {
    joins_systems = false;
    if (irreps_text(out.rows) != "2x0e+1x1o")
        fields.fail("out", irreps_text(out.rows), "2x0e+1x1o");
    const std::vector<std::string> names = fields.texts("field");
    if (names.size() != components_.size())
        fields.fail("field", std::to_string(names.size()) + " inputs", "three: x, y and z");
    for (std::size_t d = 0; d < 3; ++d) components_[d] = input_number(names[d]);
}

std::array<double, 3> ExternalPotentialSpec::field(const double* inputs, const bool* periodic,
                                                   Communicator* communicator,
                                                   std::int64_t num_local) const {
    std::array<double, 3> found{};
    for (std::size_t d = 0; d < 3; ++d) found[d] = inputs[components_[d]];
    if (std::none_of(found.begin(), found.end(), [](double f) { return f != 0; })) return found;
    if (periodic != nullptr && (periodic[0] || periodic[1] || periodic[2]))
        bad_argument("the external field is (" + number_text(found[0]) + ", " +
                     number_text(found[1]) + ", " + number_text(found[2]) +
                     ") eV/Å/e and the system is periodic, where the energy would jump when an "
                     "atom is wrapped into the cell, expected an open system or no field");
    expect_one_process(communicator, num_local);
    return found;
}

namespace {

template <typename T>
class CpuExternalPotential : public CpuOp<T> {
public:
    explicit CpuExternalPotential(const ExternalPotentialSpec& spec) : spec_(spec) {}

    void forward(Worker<T>& worker, Range nodes) const override {
        field_ = spec_.field(worker, nodes.end - nodes.begin);
        const auto potential = [&](std::int64_t n) {
            const double* const r = worker.positions + 3 * n;
            return field_[0] * r[0] + field_[1] * r[1] + field_[2] * r[2];
        };
        const double at_centre = mean(nodes, potential);
        const Block& vector = spec_.out.rows.blocks[1];
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            T* const row = worker.value(spec_.out, n);
            std::fill_n(row, spec_.out.rows.width, T(0));
            row[0] = static_cast<T>(potential(n) - at_centre);
            row[1] = static_cast<T>(potential(n));
            for (int d = 0; d < 3; ++d)
                row[vector.offset + d * vector.stride] = static_cast<T>(field_[size(d)]);
        }
    }

    void backward(Worker<T>& worker, Range nodes) const override {
        const auto centred = [&](std::int64_t n) {
            return static_cast<double>(worker.gradient(spec_.out, n)[0]);
        };
        const double of_centre = mean(nodes, centred);
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            const double slope =
                centred(n) - of_centre + static_cast<double>(worker.gradient(spec_.out, n)[1]);
            const double* const r = worker.positions + 3 * n;
            for (std::size_t a = 0; a < 3; ++a) {
                worker.forces[size(3 * n) + a] -= slope * field_[a];
                for (std::size_t b = 0; b < 3; ++b)
                    worker.virial[3 * a + b] -= 0.5 * slope * (r[a] * field_[b] + r[b] * field_[a]);
            }
        }
    }

private:
    template <typename Value>
    static double mean(Range nodes, const Value& value) {
        double sum = 0;
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) sum += value(n);
        return nodes.end > nodes.begin ? sum / static_cast<double>(nodes.end - nodes.begin) : 0.0;
    }

    const ExternalPotentialSpec& spec_;
    mutable std::array<double, 3> field_{};  // from the forward pass to the backward pass
};

const RegisterOp<ExternalPotentialSpec, CpuExternalPotential> registered{"external_potential"};

}  // namespace

}  // namespace mdcg
