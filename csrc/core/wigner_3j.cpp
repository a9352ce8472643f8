#include "core/wigner_3j.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "core/integers.hpp"

namespace mdcg {

namespace {

// n over k, by Pascal's triangle.
class Binomials {
public:
    Binomials() {
        for (int n = 0; n < COUNT; ++n)
            for (int k = 0; k <= n; ++k)
                of_[n][k] = k == 0 || k == n ? 1 : of_[n - 1][k - 1] + of_[n - 1][k];
    }
    double operator()(int n, int k) const { return k < 0 || k > n ? 0 : of_[n][k]; }

private:
    static constexpr int COUNT = 3 * MAX_WIGNER_DEGREE + 1;
    double of_[COUNT][COUNT] = {};
};

// <l1 m1 l2 m2 | l3 m1+m2> by Racah's sum (Edmonds 1957, equation 3.6.11). Its factorials are
// gathered into binomials, which are integers, so that no digits are lost when terms cancel.
double clebsch_gordan(int l1, int m1, int l2, int m2, int l3) {
    static const Binomials binomial;
    const int a = l1 + l2 - l3, b = l1 - l2 + l3, c = l2 + l3 - l1, all = a + b + c;
    double sum = 0;
    for (int k = 0; k <= a; ++k)
        sum += (k % 2 == 0 ? 1 : -1) * binomial(a, k) * binomial(b, l1 - m1 - k) *
               binomial(c, l2 + m2 - k);
    const double square = (2 * l3 + 1) * binomial(2 * l1, a) * binomial(2 * l2, a) * sum * sum /
                          ((all + 1) * binomial(all, a) * binomial(2 * l1, l1 + m1) *
                           binomial(2 * l2, l2 + m2) * binomial(2 * l3, l3 + m1 + m2));
    return std::copysign(std::sqrt(square), sum);
}

// A real harmonic is a sum of one or two complex ones, each times i^turns and, if m is not 0,
// 1/sqrt(2).
struct ComplexParts {
    struct {
        int m, turns;
    } part[2];
    int count;
    ComplexParts(int l, int component) : part{}, count(component == 0 ? 1 : 2) {
        const int m = std::abs(component);
        const int sine = component < 0 ? 1 : 0;
        part[0] = {-m, 3 * l + 3 * sine};  // times (-i)^l, so that 3j symbols are real
        part[1] = {m, 3 * l + 2 * m + sine};
    }
};

}  // namespace

std::vector<double> wigner_3j(int l1, int l2, int l3) {
    const std::string degrees = "degrees (" + std::to_string(l1) + ", " + std::to_string(l2) +
                                ", " + std::to_string(l3) + ")";
    if (std::min({l1, l2, l3}) < 0 || l3 > l1 + l2 || l3 < std::abs(l1 - l2))
        throw std::invalid_argument(degrees + " violate |l1 - l2| <= l3 <= l1 + l2");
    if (std::max({l1, l2, l3}) > MAX_WIGNER_DEGREE)
        throw std::invalid_argument(degrees + ": expected at most " +
                                    std::to_string(MAX_WIGNER_DEGREE));
    const double norms[] = {1, std::sqrt(0.5), 0.5, std::sqrt(0.5) * 0.5};
    std::vector<double> symbol(size(2 * l1 + 1) * size(2 * l2 + 1) * size(2 * l3 + 1));
    double* entry = symbol.data();
    for (int i = -l1; i <= l1; ++i)
        for (int j = -l2; j <= l2; ++j)
            for (int k = -l3; k <= l3; ++k, ++entry) {
                const int sum = std::abs(i) + std::abs(j), difference = std::abs(i) - std::abs(j);
                if (std::abs(k) != sum && std::abs(k) != std::abs(difference)) continue;
                const ComplexParts one(l1, i), two(l2, j), three(l3, k);
                double total = 0;
                for (int p = 0; p < one.count; ++p)
                    for (int q = 0; q < two.count; ++q)
                        for (int r = 0; r < three.count; ++r) {
                            const int m1 = one.part[p].m, m2 = two.part[q].m;
                            if (m1 + m2 != three.part[r].m) continue;
                            // the real part of i^turns is 1, 0, -1 or 0
                            const int turns =
                                one.part[p].turns + two.part[q].turns + 3 * three.part[r].turns;
                            if (turns % 2 == 0)
                                total +=
                                    (turns % 4 == 0 ? 1 : -1) * clebsch_gordan(l1, m1, l2, m2, l3);
                        }
                const double value =
                    total * norms[(i != 0) + (j != 0) + (k != 0)] / std::sqrt(2 * l3 + 1);
                // entries that are not zero are above 1e-6; a smaller one is a rounded zero
                if (std::abs(value) > 1e-12) *entry = value;
            }
    return symbol;
}

}  // namespace mdcg
