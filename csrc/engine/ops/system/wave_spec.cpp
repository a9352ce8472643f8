#include "engine/ops/system/wave_spec.hpp"

#include <string>

#include "core/text.hpp"
#include "engine/error.hpp"

namespace mdcg {

double WaveSpec::length(const Fields& from, const char* key) {
    const double found = from.number(key);
    if (!(found >= 1e-3 && found <= 1e3))
        from.fail(key, number_text(found), "a length from 0.001 to 1000");
    return found;
}

bool WaveSpec::removes_own_part() const {
    const std::string part = fields.text("own_part");
    if (part != "kept" && part != "removed")
        fields.fail("own_part", "'" + part + "'", "kept or removed");
    return part == "removed";
}

bool WaveSpec::is_periodic(const double* cell, const bool* periodic) const {
    const int directions = cell == nullptr ? 0 : periodic[0] + periodic[1] + periodic[2];
    if (directions == 1 || directions == 2)
        bad_argument(
            "the model sums over a cell or an open system, and the system is periodic "
            "along " +
            std::to_string(directions) + (directions == 1 ? " direction" : " directions") +
            ", expected 0 or 3: make it periodic along all, with vacuum in the cell");
    return directions == 3;
}

void WaveSpec::expect_one_process(Communicator* communicator, std::int64_t num_local) const {
    if (communicator == nullptr) return;
    std::int64_t processes = num_local > 0 ? 1 : 0;  // with atoms
    communicator->sum(&processes, 1);
    if (processes > 1)
        throw EngineError(
            ErrorKind::unsupported,
            "the model sums over all pairs of an open system, which several processes "
            "(ranks) cannot share: use one, or a periodic cell with vacuum");
}

}  // namespace mdcg
