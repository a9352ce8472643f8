#include "engine/package/dispersion.hpp"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/text.hpp"
#include "engine/error.hpp"
#include "engine/package/fields.hpp"
#include "engine/package/limits.hpp"

namespace mdcg {

namespace {

using json = nlohmann::json;

// The literature writes functionals in several ways: "PBE", "r2SCAN-3c".
std::string plain_name(const std::string& functional) {
    std::string out;
    for (const char c : functional)
        if (c != '-') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return out;
}

std::string dampings_of(const json& dampings) {
    std::string names;
    for (const auto& [name, parameters] : dampings.items())
        names += (names.empty() ? "" : ", ") + name;
    return names;
}

}  // namespace

std::shared_ptr<const Package> dispersion_network(std::shared_ptr<const Package> package,
                                                  const DispersionChoice& choice) {
    const ModelInfo info = read_model_info(*package);
    const Fields manifest(package->manifest(), *package, "manifest");
    const auto refuse = [&](const std::string& why) {
        throw EngineError(ErrorKind::unsupported, package->path() + ": " + why);
    };
    if (choice.damping != "bj" && choice.damping != "zero")
        bad_argument("damping is '" + choice.damping +
                     "', expected bj (Becke and Johnson) or zero");
    if (!(choice.cutoff > 0 && choice.cutoff <= limits::MAX_LENGTH))
        bad_argument("dispersion_cutoff is " + number_text(choice.cutoff) +
                     " Å, expected a length over 0, such as 21.17");
    if (!manifest.has("dispersion"))
        refuse("dispersion is '" + choice.functional +
               "', and the package holds none: convert the checkpoint again with mdcg-patch "
               "--dispersion " +
               choice.functional);
    const Fields given = manifest.object("dispersion");
    const std::string functional = given.text("functional");
    if (plain_name(functional) != plain_name(choice.functional))
        refuse("dispersion is '" + choice.functional + "', and the package holds that of " +
               functional + ": ask for that one, or convert the checkpoint again");
    const json& dampings = given.json("damping");
    if (!dampings.is_object()) given.fail("damping", "no object", "parameters by damping");
    if (!dampings.contains(choice.damping))
        refuse("damping is '" + choice.damping + "', for which " + functional +
               " has no parameters, expected " + dampings_of(dampings));
    const double coordination = given.number("coordination_cutoff");
    json layers = json::array();
    layers.push_back({{"type", "coordination"},
                      {"out", "cn"},
                      {"radii", given.json("covalent_radii")},
                      {"steepness", given.json("coordination_steepness")},
                      {"cutoff", coordination}});
    layers.push_back({{"type", "reference_weights"},
                      {"x", "cn"},
                      {"out", "weights"},
                      {"references", given.json("references")},
                      {"steepness", given.json("weight_steepness")}});
    layers.push_back({{"type", "exchange"}, {"x", "weights"}});
    json last = dampings[choice.damping];
    if (!last.is_object()) given.fail("damping", "no object", "parameters by damping");
    last.update({{"type", "dispersion"},
                 {"x", "weights"},
                 {"c6", given.json("c6")},
                 {"q", given.json("q")},
                 {"radii", given.json("pair_radii")},
                 {"damping", choice.damping},
                 {"cutoff", choice.cutoff}});
    layers.push_back(std::move(last));
    json network = {{"format", PACKAGE_FORMAT},
                    {"architecture", "d3"},
                    {"model_class", functional + "-D3(" + choice.damping + ")"},
                    {"type_names", info.type_names},
                    {"r_max", std::max(coordination, choice.cutoff)},
                    {"dtype", "float64"},
                    {"values", {{"cn", "1x0e"}, {"weights", "7x0e"}}},
                    {"layers", std::move(layers)}};
    if (!info.atomic_numbers.empty()) network["atomic_numbers"] = info.atomic_numbers;
    return Package::with_manifest(std::move(package), std::move(network));
}

std::shared_ptr<const Package> chosen_network(std::shared_ptr<const Package> package,
                                              const DispersionChoice& choice) {
    if (!choice.functional.empty()) return dispersion_network(std::move(package), choice);
    const DispersionChoice none;
    if (choice.damping != none.damping || choice.cutoff != none.cutoff)
        bad_argument(
            "damping or dispersion_cutoff is given without dispersion, expected the functional of "
            "dispersion as well, such as pbe");
    return package;
}

std::vector<std::shared_ptr<const Package>> networks_of(std::shared_ptr<const Package> package) {
    std::vector<std::shared_ptr<const Package>> found = {package};
    const Fields manifest(package->manifest(), *package, "manifest");
    if (!manifest.has("dispersion")) return found;
    const Fields given = manifest.object("dispersion");
    const json& dampings = given.json("damping");
    if (!dampings.is_object() || dampings.empty())
        given.fail("damping", "no object", "parameters by damping");
    for (const auto& [name, parameters] : dampings.items())
        found.push_back(dispersion_network(package, {given.text("functional"), name}));
    return found;
}

}  // namespace mdcg
