#include "engine/neighbors/verlet_skin.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>

#include "core/text.hpp"
#include "engine/backend/cpu/parallel.hpp"

namespace mdcg {

namespace {

// Whether square(i) of any item is larger than the limit, or not a number.
template <typename Square>
bool any_beyond(int threads, std::int64_t count, double limit, const Square& square) {
    std::atomic<bool> found{false};
    threads = std::max(threads, 1);
    share(threads, threads, [&](std::int64_t part, int) {
        int beyond = 0;  // an integer, so that the loop has no branch
        const std::int64_t end = count * (part + 1) / threads;
        for (std::int64_t i = count * part / threads; i < end; ++i) beyond |= !(square(i) <= limit);
        if (beyond != 0) found = true;
    });
    return found;
}

}  // namespace

VerletSkin::VerletSkin(double cutoff, double skin, double shortest)
    : cutoff_(cutoff), skin_(skin), shortest_(shortest < 0 ? cutoff : shortest) {
    if (!(cutoff > 0) || !std::isfinite(cutoff) || !(skin >= 0) || !std::isfinite(skin))
        throw std::invalid_argument("cutoff is " + number_text(cutoff) + " Å and skin " +
                                    number_text(skin) +
                                    " Å, expected finite lengths, above 0 and of 0 or more");
}

ListChange VerletSkin::needs_rebuild(std::int64_t num_atoms, const double* positions,
                                     const double* cell, const bool* periodic, int threads) {
    if (num_atoms > std::numeric_limits<std::int32_t>::max())
        throw GeometryError("the system has " + std::to_string(num_atoms) +
                            " atoms, expected at most 2^31 - 1");
    std::array<bool, 3> directions{};
    for (std::size_t k = 0; k < 3; ++k) directions[k] = cell != nullptr && periodic[k];
    const Matrix3 full = complete_cell(cell, directions);
    const Matrix3 inverse = invert(full);
    const bool same = valid_ && num_atoms == num_atoms_ && directions == periodic_;
    const bool same_cell = same && full == full_;
    // positions close to checked ones need no check
    const bool covered = same && still_covers(positions, full, threads);
    if (!covered) {
        check_positions(num_atoms, positions);
        check_distance(num_atoms, positions, inverse, directions);
    }
    full_ = full;
    inverse_ = inverse;
    if (covered) return same_cell ? ListChange::none : ListChange::shifts;
    valid_ = false;
    num_atoms_ = num_atoms;
    periodic_ = directions;
    if (shortest_ == cutoff_) check_images(heights(), periodic_, reach());
    return ListChange::edges;
}

void VerletSkin::keep(const double* positions) {
    built_at_.assign(positions, positions + 3 * num_atoms_);
    built_in_ = full_;
    valid_ = true;
}

Vector3 VerletSkin::heights() const {
    Vector3 found{};
    for (std::size_t k = 0; k < 3; ++k) {
        double square = 0;
        for (std::size_t c = 0; c < 3; ++c) square += inverse_[c][k] * inverse_[c][k];
        found[k] = 1.0 / std::sqrt(square);
    }
    return found;
}

// Pairs that are not in the list were further apart than cutoff + skin. A changed cell scales their
// distance by a factor that is at least its smallest stretch. Two atoms come closer by at most
// twice the largest distance that an atom has moved relative to the cell.
bool VerletSkin::still_covers(const double* positions, const Matrix3& full, int threads) const {
    if (skin_ == 0) {
        return full == built_in_ && std::equal(built_at_.begin(), built_at_.end(), positions);
    }
    Matrix3 stretch = {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}};
    double smallest = 1.0;
    if (full != built_in_) {
        stretch = multiply(invert(built_in_), full);
        smallest = smallest_singular_value(stretch);
    }
    // A stretched cell covers long cutoffs better than short ones, and a compressed cell the
    // reverse.
    const auto allowed_for = [&](double cutoff) {
        return 0.5 * (smallest * (cutoff + skin_) - cutoff);
    };
    const double allowed = std::min(allowed_for(cutoff_), allowed_for(shortest_));
    if (!(allowed > 0)) return false;
    const double limit = allowed * allowed;
    if (full == built_in_)
        return !any_beyond(threads, num_atoms_, limit, [&](std::int64_t i) {
            const double* old = built_at_.data() + 3 * i;
            const double* now = positions + 3 * i;
            const double x = now[0] - old[0], y = now[1] - old[1], z = now[2] - old[2];
            return x * x + y * y + z * z;
        });
    return !any_beyond(threads, num_atoms_, limit, [&](std::int64_t i) {
        const double* old = built_at_.data() + 3 * i;
        const double* now = positions + 3 * i;
        double square = 0;
        for (std::size_t k = 0; k < 3; ++k) {
            const double moved =
                now[k] - (old[0] * stretch[0][k] + old[1] * stretch[1][k] + old[2] * stretch[2][k]);
            square += moved * moved;
        }
        return square;
    });
}

}  // namespace mdcg
