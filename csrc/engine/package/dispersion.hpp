// Grimme's D3 dispersion, which a package may hold in addition to its network, in the object
// `dispersion` of the manifest. It is evaluated as a network of its own, with a longer cutoff.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/package/package.hpp"

namespace mdcg {

struct DispersionChoice {
    std::string functional;  // the one that the package has; empty: no dispersion
    std::string damping = "bj";
    double cutoff = 40 * 0.529177210903;  // cutoff of pairs, Å
};

// Returns the network of a package, or the network of its dispersion if a functional is chosen.
// Throws EngineError, also if a damping or a cutoff is chosen without a functional.
std::shared_ptr<const Package> chosen_network(std::shared_ptr<const Package> package,
                                              const DispersionChoice& choice);

// Returns the network of the dispersion that a package holds, which is always float64. Throws
// EngineError if the package holds none, or the dispersion of another functional.
std::shared_ptr<const Package> dispersion_network(std::shared_ptr<const Package> package,
                                                  const DispersionChoice& choice);

// Returns the network of a package and, if it holds a dispersion, the networks of all its dampings.
// Throws EngineError.
std::vector<std::shared_ptr<const Package>> networks_of(std::shared_ptr<const Package> package);

}  // namespace mdcg
