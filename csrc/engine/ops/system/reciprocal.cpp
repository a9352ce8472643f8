#include "engine/ops/system/reciprocal.hpp"

#include <string>

namespace mdcg {

MultipoleSpec::MultipoleSpec(const LayerEntry& given) : WaveSpec(given) {
    joins_systems = false;
    gaussians = {length("sigma"), length("spacing"), fields.number("factor")};
    offset = length("offset");
    source = by_degree(fields, "source");
    own_removed = removes_own_part();
    channels = x.rows.blocks[0].mul;
    dipoles = has_vectors("x", x, channels);
}

bool MultipoleSpec::has_vectors(const char* key, const Operand& value, int count) const {
    const std::string scalars = std::to_string(count) + "x0e";
    const std::string both = scalars + "+" + std::to_string(count) + "x1o";
    const std::string found = irreps_text(value.rows);
    if (found != scalars && found != both) fields.fail(key, found, scalars + " or " + both);
    return found == both;
}

ByDegree MultipoleSpec::by_degree(const Fields& from, const char* key) const {
    const std::vector<double> found = from.numbers(key);
    if (found.size() != 2)
        from.fail(key, std::to_string(found.size()) + " numbers",
                  "two: for charges and for dipoles");
    return {found[0], found[1]};
}

ReciprocalFieldSpec::ReciprocalFieldSpec(const LayerEntry& given) : MultipoleSpec(given) {
    for (const Fields& entry : fields.objects("receivers"))
        receivers.push_back(
            {length(entry, "sigma"), by_degree(entry, "scale"), by_degree(entry, "own")});
    if (receivers.empty()) fields.fail("receivers", "empty", "one or more");
    slopes = has_vectors("out", out, channels * static_cast<int>(receivers.size()));
}

ReciprocalEnergySpec::ReciprocalEnergySpec(const LayerEntry& given) : MultipoleSpec(given) {
    own = by_degree(fields, "own");
}

}  // namespace mdcg
