#include "engine/ops/system/ewald.hpp"

#include <cmath>

namespace mdcg {

EwaldSpec::EwaldSpec(const LayerEntry& given) : WaveSpec(given) {
    if (x.rows.features != 1) fields.fail("x", "a value of another size", "1x0e");
    charges = {length("sigma"), length("spacing"), fields.number("factor")};
    own = charges.factor / (charges.sigma * std::pow(TWO_PI, 1.5));
    own_removed = removes_own_part();
}

}  // namespace mdcg
