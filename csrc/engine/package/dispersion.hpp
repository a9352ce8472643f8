// Grimme's D3 dispersion, which a package may hold beside its network: the object `dispersion` of
// the manifest. It is evaluated as a network of its own, with a longer cutoff.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/package/package.hpp"

namespace mdcg {

struct DispersionChoice {
    std::string functional;  // as the package names it; empty: no dispersion
    std::string damping = "bj";
    double cutoff = 40 * 0.529177210903;  // of pairs, Å
};

// The network of a package, or the network of its dispersion where a functional is chosen. Throws
// EngineError, also where a damping or a cutoff is chosen without a functional.
std::shared_ptr<const Package> chosen_network(std::shared_ptr<const Package> package,
                                              const DispersionChoice& choice);

// The network of the dispersion that a package holds, float64 whatever the package is. Throws
// EngineError where it holds none, or another one.
std::shared_ptr<const Package> dispersion_network(std::shared_ptr<const Package> package,
                                                  const DispersionChoice& choice);

// The network of a package, and those of its dispersion with every damping, if it holds one. Throws
// EngineError.
std::vector<std::shared_ptr<const Package>> networks_of(std::shared_ptr<const Package> package);

}  // namespace mdcg
