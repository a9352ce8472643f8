// Wigner 3j symbols in the real basis of e3nn.
#pragma once

#include <vector>

namespace mdcg {

// Up to this degree all integers of the computation are exact in double.
constexpr int MAX_WIGNER_DEGREE = 16;

// Returns the symbol w[m1][m2][m3], of shape [2 l1 + 1][2 l2 + 1][2 l3 + 1] and unit Frobenius
// norm, with the signs of e3nn 0.5 and later. It is equal bit by bit on all machines. Throws
// std::invalid_argument if the degrees do not couple, or if one is above MAX_WIGNER_DEGREE.
std::vector<double> wigner_3j(int l1, int l2, int l3);

}  // namespace mdcg
