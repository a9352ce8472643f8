#include "engine/edges/harmonics.hpp"

#include <cmath>
#include <stdexcept>

#include "core/integers.hpp"

namespace mdcg {

template <typename T>
std::vector<T> harmonic_factors(int l_max, const std::string& normalization) {
    if (l_max < 0 || l_max > MAX_HARMONICS_L)
        throw std::invalid_argument("l_max is " + std::to_string(l_max) + ", expected 0 .. " +
                                    std::to_string(MAX_HARMONICS_L));
    const double pi = 3.14159265358979323846;
    std::vector<T> factors(size((l_max + 1) * (l_max + 1)));
    for (int l = 0; l <= l_max; ++l) {
        double norm;
        if (normalization == "component")
            norm = std::sqrt(2.0 * l + 1.0);
        else if (normalization == "norm")
            norm = 1.0;
        else if (normalization == "integral")
            norm = std::sqrt((2.0 * l + 1.0) / (4.0 * pi));
        else
            throw std::invalid_argument("normalization is '" + normalization +
                                        "', expected component, norm or integral");
        double ratio = 1.0;  // (l-m)! / (l+m)!
        for (int m = 0; m <= l; ++m) {
            if (m > 0) ratio /= static_cast<double>((l + m) * (l - m + 1));
            const double factor = norm * std::sqrt(m > 0 ? 2.0 * ratio : ratio);
            factors[size(l * l + l + m)] = static_cast<T>(factor);
            factors[size(l * l + l - m)] = static_cast<T>(factor);
        }
    }
    return factors;
}

template std::vector<float> harmonic_factors<float>(int, const std::string&);
template std::vector<double> harmonic_factors<double>(int, const std::string&);

}  // namespace mdcg
