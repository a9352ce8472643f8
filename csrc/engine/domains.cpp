#include "engine/domains.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "core/integers.hpp"
#include "core/text.hpp"
#include "engine/backend/cpu/parallel.hpp"
#include "engine/neighbors/bins.hpp"

namespace mdcg {

namespace {

// Bins in which atoms are counted to find planes with equal numbers of atoms between them.
constexpr std::int64_t PLANE_BINS = 1 << 16;
constexpr std::int64_t MOST_PARTS = 64;  // of one direction
constexpr double ROUNDING = 1e-6;        // Å

constexpr std::int32_t CELLS = 1024, NO_CELL = 512;  // see packed()

// Three numbers of cells, each at most MAX_STEPS from 0, in one integer.
std::int32_t packed(const std::array<int, 3>& cells) {
    return ((cells[0] + NO_CELL) * CELLS + cells[1] + NO_CELL) * CELLS + cells[2] + NO_CELL;
}

std::array<int, 3> unpacked(std::int32_t cells) {
    return {cells / (CELLS * CELLS) - NO_CELL, cells / CELLS % CELLS - NO_CELL,
            cells % CELLS - NO_CELL};
}

// The position of an atom in units of the cell vectors (Å along open directions).
double fraction(const double* position, const Matrix3& inverse, std::size_t k) {
    return position[0] * inverse[0][k] + position[1] * inverse[1][k] + position[2] * inverse[2][k];
}

}  // namespace

double estimate_neighbors(const CellSystem& system, double reach) {
    VerletSkin watch(reach, 0);
    const std::int64_t atoms = system.num_nodes;
    watch.needs_rebuild(atoms, system.positions, system.cell, system.periodic);
    if (atoms == 0) return 0;
    const std::array<bool, 3>& periodic = watch.periodic();
    Vector3 low{}, extent = watch.heights();
    const Vector3 heights = extent;
    for (std::size_t k = 0; k < 3; ++k) {
        if (periodic[k]) continue;
        double high = -std::numeric_limits<double>::infinity();
        low[k] = -high;
        for (std::int64_t i = 0; i < atoms; ++i) {
            const double along = fraction(system.positions + 3 * i, watch.inverse(), k);
            low[k] = std::min(low[k], along);
            high = std::max(high, along);
        }
        extent[k] = high - low[k];
    }
    // bins of half the reach, so that a neighbour is at most two bins away
    const Bins bins = choose_bins(extent, periodic, reach, 8 * atoms + 64);
    const auto& [nx, ny, nz] = bins.count;
    std::vector<std::int32_t> count(size(nx * ny * nz), 0);
    for (std::int64_t i = 0; i < atoms; ++i) {
        std::array<std::int64_t, 3> at{};
        for (std::size_t k = 0; k < 3; ++k) {
            double along = fraction(system.positions + 3 * i, watch.inverse(), k) - low[k];
            if (periodic[k]) along -= std::floor(along);
            const double scale = periodic[k] ? 1.0 : extent[k] > 0 ? 1.0 / extent[k] : 0.0;
            at[k] = std::clamp<std::int64_t>(
                static_cast<std::int64_t>(along * scale * static_cast<double>(bins.count[k])), 0,
                bins.count[k] - 1);
        }
        ++count[size((at[0] * ny + at[1]) * nz + at[2])];
    }
    // the mean density in the bins of the stencil, times the volume of a sphere
    double volume = 1;
    for (std::size_t k = 0; k < 3; ++k)
        volume *= std::max(extent[k] / static_cast<double>(bins.count[k]), 1e-3) *
                  static_cast<double>(2 * bins.stencil[k] + 1);
    // A skewed cell has bins of a larger volume than the product of its heights.
    double skew = 1;
    for (std::size_t k = 0; k < 3; ++k) skew *= heights[k];
    const Matrix3& f = watch.full();
    const double cell_volume = std::abs(f[0][0] * (f[1][1] * f[2][2] - f[1][2] * f[2][1]) -
                                        f[0][1] * (f[1][0] * f[2][2] - f[1][2] * f[2][0]) +
                                        f[0][2] * (f[1][0] * f[2][1] - f[1][1] * f[2][0]));
    volume *= cell_volume / skew;
    const double share =
        std::min(4.0 / 3.0 * 3.14159265358979 * reach * reach * reach / volume, 1.0);
    double pairs = 0;
    const auto wrapped = [&](std::int64_t at, std::size_t k) {
        if (periodic[k]) return (at % bins.count[k] + bins.count[k]) % bins.count[k];
        return at < 0 || at >= bins.count[k] ? std::int64_t(-1) : at;
    };
    for (std::int64_t x = 0; x < nx; ++x)
        for (std::int64_t y = 0; y < ny; ++y)
            for (std::int64_t z = 0; z < nz; ++z) {
                const std::int32_t own = count[size((x * ny + y) * nz + z)];
                if (own == 0) continue;
                double around = 0;
                for (std::int64_t a = -bins.stencil[0]; a <= bins.stencil[0]; ++a)
                    for (std::int64_t b = -bins.stencil[1]; b <= bins.stencil[1]; ++b)
                        for (std::int64_t c = -bins.stencil[2]; c <= bins.stencil[2]; ++c) {
                            const std::int64_t i = wrapped(x + a, 0), j = wrapped(y + b, 1),
                                               k = wrapped(z + c, 2);
                            if (i >= 0 && j >= 0 && k >= 0)
                                around += count[size((i * ny + j) * nz + k)];
                        }
                pairs += own * around;
            }
    return share * pairs / static_cast<double>(atoms);
}

Domains::Domains(double cutoff, int layers) : cutoff_(cutoff), layers_(layers) {}

void Domains::cut(const CellSystem& system, const Bytes& bytes, double limit, int threads) {
    const std::int64_t atoms = system.num_nodes;
    if (watch_ == nullptr || watch_->skin() != system.skin) {
        watch_ = std::make_unique<VerletSkin>(layers_ * cutoff_, system.skin);
        margin_ = system.skin + ROUNDING;
    }
    if (watch_->needs_rebuild(atoms, system.positions, system.cell, system.periodic, threads) !=
        ListChange::edges)
        return;
    ++num_cuts_;
    measure(system, threads);
    for (double allowed = limit;;) {
        counts_ = choose(static_cast<double>(atoms), bytes, allowed);
        find_planes(atoms);
        divide(atoms, threads);
        double most = 0;
        for (const Domain& domain : domains_)
            most = std::max(most, bytes(static_cast<double>(domain.num_local),
                                        static_cast<double>(domain.atom.size())));
        if (most <= limit) break;
        allowed *= 0.98 * limit / most;  // the atoms are not spread evenly
    }
    along_ = std::vector<double>();
    watch_->keep(system.positions);
}

// Measures where atoms are along each direction.
void Domains::measure(const CellSystem& system, int threads) {
    const std::int64_t atoms = system.num_nodes;
    const std::array<bool, 3>& periodic = watch_->periodic();
    const Vector3 heights = watch_->heights();
    along_.resize(size(3 * atoms));
    wraps_.resize(size(3 * atoms));
    share(threads, atoms, [&](std::int64_t i, int) {
        for (std::size_t k = 0; k < 3; ++k) {
            double at = fraction(system.positions + 3 * i, watch_->inverse(), k);
            const double cells = periodic[k] ? std::floor(at) : 0.0;
            at -= cells;
            along_[size(3 * i) + k] = at * heights[k];
            wraps_[size(3 * i) + k] = static_cast<std::int32_t>(cells);
        }
    });
    for (std::size_t k = 0; k < 3; ++k) {
        low_[k] = 0;
        length_[k] = heights[k];
        if (periodic[k] || atoms == 0) continue;
        double high = -std::numeric_limits<double>::infinity();
        low_[k] = -high;
        for (std::int64_t i = 0; i < atoms; ++i) {
            low_[k] = std::min(low_[k], along_[size(3 * i) + k]);
            high = std::max(high, along_[size(3 * i) + k]);
        }
        length_[k] = high - low_[k];
    }
}

// Returns the numbers of parts for which all domains together have the fewest local nodes, if atoms
// are spread evenly.
Domains::Counts Domains::choose(double num_atoms, const Bytes& bytes, double limit) const {
    Counts most{}, best{};
    for (std::size_t k = 0; k < 3; ++k)
        most[k] = std::clamp<std::int64_t>(static_cast<std::int64_t>(length_[k] / cutoff_), 1,
                                           MOST_PARTS);
    const auto share = [&](std::size_t k, std::int64_t parts, double reach) {
        return parts == 1 ? 1.0 : 1.0 / static_cast<double>(parts) + 2 * reach / length_[k];
    };
    double least = std::numeric_limits<double>::infinity(), smallest = least;
    for (std::int64_t x = 1; x <= most[0]; ++x)
        for (std::int64_t y = 1; y <= most[1]; ++y)
            for (std::int64_t z = 1; z <= most[2]; ++z) {
                double local = num_atoms, nodes = num_atoms;
                for (const auto& [k, parts] : {std::pair{0, x}, {1, y}, {2, z}}) {
                    local *= share(size(k), parts, inner_reach());
                    nodes *= share(size(k), parts, outer_reach());
                }
                const double needed = bytes(local, nodes);
                smallest = std::min(smallest, needed);
                const double all = local * static_cast<double>(x * y * z);
                if (needed > limit || all >= least) continue;
                least = all;
                best = {x, y, z};
            }
    if (least == std::numeric_limits<double>::infinity()) throw MemoryError(smallest, limit);
    return best;
}

// Puts planes so that the parts of a direction have equal numbers of atoms.
void Domains::find_planes(std::int64_t num_atoms) {
    for (std::size_t k = 0; k < 3; ++k) {
        std::vector<double>& planes = planes_[k];
        planes = {low_[k]};
        const std::int64_t parts = counts_[k];
        if (parts > 1) {
            const double scale = static_cast<double>(PLANE_BINS) / length_[k];
            std::vector<std::int64_t> count(PLANE_BINS, 0);
            for (std::int64_t i = 0; i < num_atoms; ++i)
                ++count[size(std::clamp<std::int64_t>(
                    static_cast<std::int64_t>((along_[size(3 * i) + k] - low_[k]) * scale), 0,
                    PLANE_BINS - 1))];
            std::int64_t before = 0;
            for (std::int64_t b = 0; b < PLANE_BINS; ++b) {
                const auto made = static_cast<std::int64_t>(planes.size());
                if (made < parts && before * parts >= num_atoms * made && b > 0)
                    planes.push_back(low_[k] + static_cast<double>(b) / scale);
                before += count[size(b)];
            }
        }
        planes.push_back(low_[k] + length_[k]);
    }
}

// Finds the parts of a direction that an atom is in (core) or near.
void Domains::find_parts(std::size_t direction, double along, std::vector<Part>& parts) const {
    const std::vector<double>& planes = planes_[direction];
    const auto count = static_cast<std::int64_t>(planes.size()) - 1;
    parts.clear();
    if (count == 1) {
        parts.push_back({0, 0, core});
        return;
    }
    const auto next = std::upper_bound(planes.begin(), planes.end(), along) - planes.begin();
    const std::int64_t own = std::clamp<std::int64_t>(next - 1, 0, count - 1);
    parts.push_back({own, 0, core});
    const bool periodic = watch_->periodic()[direction];
    // Parts are numbered on through the images of the cell.
    const auto add = [&](std::int64_t part, int side) {
        if (!periodic && (part < 0 || part >= count)) return false;
        const std::int64_t number = (part % count + count) % count, cells = (part - number) / count;
        const double plane = planes[size(number + (side > 0 ? 0 : 1))] +
                             static_cast<double>(cells) * length_[direction];
        const double distance = side > 0 ? plane - along : along - plane;
        if (distance > outer_reach()) return false;
        const Ring ring = layers_ > 1 && distance <= inner_reach() ? inner : outer;
        parts.push_back({number, -static_cast<int>(cells), ring});
        return true;
    };
    for (const int side : {1, -1})
        for (std::int64_t part = own + side; add(part, side); part += side) {
        }
}

void Domains::divide(std::int64_t num_atoms, int threads) {
    const auto number_of = [&](std::size_t k) {
        return static_cast<std::int64_t>(planes_[k].size()) - 1;
    };
    const auto count = size(number_of(0) * number_of(1) * number_of(2));
    struct Rows {
        std::array<std::vector<std::int32_t>, 3> atom, image;  // by ring
    };
    // Each thread takes neighbouring atoms, so that the order does not depend on their number.
    threads = std::max(threads, 1);
    std::vector<std::vector<Rows>> found(size(threads), std::vector<Rows>(count));
    share(threads, threads, [&](std::int64_t thread, int) {
        std::array<std::vector<Part>, 3> parts;
        for (std::int64_t i = num_atoms * thread / threads; i < num_atoms * (thread + 1) / threads;
             ++i) {
            for (std::size_t k = 0; k < 3; ++k) find_parts(k, along_[size(3 * i) + k], parts[k]);
            for (const Part& x : parts[0])
                for (const Part& y : parts[1])
                    for (const Part& z : parts[2]) {
                        const auto domain =
                            size((x.number * number_of(1) + y.number) * number_of(2) + z.number);
                        Rows& rows = found[size(thread)][domain];
                        const auto ring = size(std::max({x.ring, y.ring, z.ring}));
                        rows.atom[ring].push_back(narrow(i));
                        rows.image[ring].push_back(packed({x.image, y.image, z.image}));
                    }
        }
    });
    domains_.assign(count, {});
    share(threads, static_cast<std::int64_t>(count), [&](std::int64_t number, int) {
        Domain& domain = domains_[size(number)];
        for (const std::size_t ring : {core, inner, outer}) {
            for (std::vector<Rows>& each : found) {
                Rows& rows = each[size(number)];
                domain.atom.insert(domain.atom.end(), rows.atom[ring].begin(),
                                   rows.atom[ring].end());
                domain.image.insert(domain.image.end(), rows.image[ring].begin(),
                                    rows.image[ring].end());
                rows.atom[ring] = rows.image[ring] = std::vector<std::int32_t>();
            }
            const auto nodes = static_cast<std::int64_t>(domain.atom.size());
            if (ring == core) domain.num_core = nodes;
            if (ring != outer) domain.num_local = nodes;
        }
    });
    domains_.erase(std::remove_if(domains_.begin(), domains_.end(),
                                  [](const Domain& domain) { return domain.num_core == 0; }),
                   domains_.end());
    std::stable_sort(domains_.begin(), domains_.end(), [](const Domain& a, const Domain& b) {
        return a.atom.size() > b.atom.size();
    });
}

CellSystem Domains::take(std::size_t domain, const CellSystem& system, int threads) {
    taken_ = &domains_[domain];
    const Domain& own = *taken_;
    const auto nodes = static_cast<std::int64_t>(own.atom.size());
    std::array<bool, 3> cut{};
    for (std::size_t k = 0; k < 3; ++k) {
        cut[k] = planes_[k].size() > 2;
        periodic_[k] = watch_->periodic()[k] && !cut[k];
    }
    const Matrix3& full = watch_->full();
    positions_.resize(size(3 * nodes));
    types_.resize(size(nodes));
    share(threads, nodes, [&](std::int64_t n, int) {
        const auto atom = std::int64_t(own.atom[size(n)]);
        types_[size(n)] = system.types[atom];
        double* const to = positions_.data() + 3 * n;
        std::copy_n(system.positions + 3 * atom, 3, to);
        const std::array<int, 3> image = unpacked(own.image[size(n)]);
        for (std::size_t k = 0; k < 3; ++k) {
            if (!cut[k] || !watch_->periodic()[k]) continue;
            const double cells = image[k] - wraps_[size(3 * atom) + k];
            for (std::size_t c = 0; c < 3; ++c) to[c] += cells * full[k][c];
        }
    });
    weights_.assign(size(own.num_local), 0.0);
    for (std::int64_t n = 0; n < own.num_core; ++n)
        weights_[size(n)] =
            system.energy_weights != nullptr ? system.energy_weights[own.atom[size(n)]] : 1.0;
    CellSystem found;
    found.num_nodes = nodes;
    found.num_outer = nodes - own.num_local;
    found.positions = positions_.data();
    found.types = types_.data();
    found.cell = system.cell;
    found.periodic = periodic_.data();
    found.energy_weights = weights_.data();
    return found;
}

std::vector<std::int64_t> Domains::atoms() const {
    return {taken_->atom.begin(), taken_->atom.end()};
}

Results Domains::wanted(const Results& results, int descriptor_width) {
    const auto nodes = taken_->atom.size();
    const auto local = size(taken_->num_local);
    descriptor_width_ = descriptor_width;
    Results out = results;
    const auto into = [](double*& target, std::vector<double>& rows, std::size_t count) {
        if (target == nullptr) return;
        rows.resize(count);
        target = rows.data();
    };
    if (results.energy != nullptr || results.energies != nullptr) out.energies = &energy_;
    if (results.energy != nullptr) out.energy = &energy_;
    if (results.virial != nullptr) out.virial = virial_.data();
    into(out.energies, energies_, local);
    into(out.forces, forces_, 3 * nodes);
    into(out.virials, virials_, 9 * nodes);
    into(out.descriptors, descriptors_, local * size(descriptor_width));
    return out;
}

void Domains::start(const Results& results, std::int64_t num_atoms) const {
    if (results.energy != nullptr) *results.energy = 0;
    if (results.forces != nullptr) std::fill_n(results.forces, 3 * num_atoms, 0.0);
    if (results.virial != nullptr) std::fill_n(results.virial, 9, 0.0);
    if (results.virials != nullptr) std::fill_n(results.virials, 9 * num_atoms, 0.0);
}

void Domains::add(const Results& results, int threads) const {
    const Domain& own = *taken_;
    if (results.energy != nullptr)
        *results.energy =
            std::accumulate(energies_.begin(), energies_.begin() + own.num_core, *results.energy);
    for (int i = 0; results.virial != nullptr && i < 9; ++i) results.virial[i] += virial_[size(i)];
    const auto add_rows = [&](std::int64_t n) {
        const auto atom = std::int64_t(own.atom[size(n)]);
        for (std::int64_t i = 0; results.forces != nullptr && i < 3; ++i)
            results.forces[3 * atom + i] += forces_[size(3 * n + i)];
        for (std::int64_t i = 0; results.virials != nullptr && i < 9; ++i)
            results.virials[9 * atom + i] += virials_[size(9 * n + i)];
    };
    // An atom is in a core once, and can be several other nodes.
    share(threads, own.num_core, [&](std::int64_t n, int) {
        const auto atom = std::int64_t(own.atom[size(n)]);
        if (results.energies != nullptr) results.energies[atom] = energies_[size(n)];
        if (results.descriptors != nullptr)
            std::copy_n(descriptors_.data() + n * descriptor_width_, descriptor_width_,
                        results.descriptors + atom * descriptor_width_);
        add_rows(n);
    });
    for (std::int64_t n = own.num_core; n < static_cast<std::int64_t>(own.atom.size()); ++n)
        add_rows(n);
}

}  // namespace mdcg
