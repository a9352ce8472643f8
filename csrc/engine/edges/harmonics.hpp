// Normalisation factors of spherical harmonics in e3nn's basis.
#pragma once

#include <string>
#include <vector>

#include "engine/package/limits.hpp"

namespace mdcg {

constexpr int MAX_HARMONICS_L = limits::MAX_HARMONICS_DEGREE;

// Returns [(l_max+1)^2], the factors that EdgeKernels::harmonics takes. `normalization`:
// "component" (squares sum to 2l+1 for each l), "norm" (to 1), "integral" (squares integrate to 1
// over the sphere). Throws std::invalid_argument for other names and for l_max over
// MAX_HARMONICS_L.
template <typename T>
std::vector<T> harmonic_factors(int l_max, const std::string& normalization);

}  // namespace mdcg
