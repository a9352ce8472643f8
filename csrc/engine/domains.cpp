#include "engine/domains.hpp"

#include <algorithm>
#include <cmath>
#include <future>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "core/integers.hpp"
#include "core/interrupt.hpp"
#include "core/threads.hpp"
#include "engine/backend/cpu/parallel.hpp"
#include "engine/neighbors/estimate.hpp"

namespace mdcg {

namespace {

// Bins in which atoms are counted to find planes with equal numbers of atoms between them.
constexpr std::int64_t PLANE_BINS = 1 << 16;
constexpr std::int64_t MOST_CUTS = 64;  // of one direction
constexpr double MOST_EDGES = 2.0e9;    // edges have 32-bit numbers, and are estimated
constexpr double ROUNDING = 1e-6;       // Å
constexpr double OUTER_COST = 0.05;     // of a node that only sends, in costs of a local one

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

Domains::Domains(double cutoff, int layers, Bytes bytes, double limit)
    : cutoff_(cutoff), layers_(layers), bytes_(std::move(bytes)), limit_(limit) {}

std::int64_t Domains::max_nodes() const {
    std::int64_t most = 0;
    for (const Domain& domain : domains_) most = std::max(most, domain.num_nodes());
    return most;
}

double Domains::bytes_of(double num_local, double num_nodes) const {
    const double edges = num_local * neighbors_;
    if (edges > MOST_EDGES) return std::numeric_limits<double>::infinity();
    return correction_ * bytes_(num_local, num_nodes, edges);
}

bool Domains::divide(const CellSystem& system, int threads) {
    const std::int64_t atoms = system.num_nodes;
    if (skin_watch_ == nullptr || skin_watch_->skin() != system.skin)
        skin_watch_ = std::make_unique<VerletSkin>(layers_ * cutoff_, system.skin, 0.0);
    if (skin_watch_->needs_rebuild(atoms, system.positions, system.cell, system.periodic,
                                   threads) != ListChange::edges)
        return is_divided();
    domains_.clear();
    estimate(system);
    if (correction_ * whole_bytes_ <= limit_) {
        predicted_ = correction_ * whole_bytes_;
    } else {
        margin_ = system.skin + ROUNDING;
        cut(system, threads);
    }
    skin_watch_->keep(system.positions);
    return is_divided();
}

void Domains::estimate(const CellSystem& system) {
    const double before = neighbors_;
    neighbors_ = estimate_neighbors(system, cutoff_);
    // Corrections are for one system, whose density changes little.
    if (system.num_nodes != num_atoms_ || std::abs(neighbors_ - before) > 0.1 * before)
        correction_ = 1;
    num_atoms_ = system.num_nodes;
    // a longer reach has more neighbours, as its volume has
    const double nodes = static_cast<double>(num_atoms_), longer = 1 + system.skin / cutoff_;
    const double edges = nodes * neighbors_ * longer * longer * longer;
    whole_bytes_ =
        edges > MOST_EDGES ? std::numeric_limits<double>::infinity() : bytes_(nodes, nodes, edges);
}

void Domains::correct(double needed) {
    correction_ *= 1.02 * std::max(needed / predicted_, 1.0);
    skin_watch_.reset();
}

void Domains::cut(const CellSystem& system, int threads) {
    ++num_divisions_;
    check_images(skin_watch_->heights(), skin_watch_->periodic(), skin_watch_->reach());
    measure(system, threads);
    double least = std::numeric_limits<double>::infinity();  // bytes of any division
    for (double allowed = limit_;;) {
        poll_interrupt();
        try {
            counts_ = choose(static_cast<double>(num_atoms_), allowed);
        } catch (const MemoryError& error) {
            along_ = std::vector<double>();
            throw MemoryError(std::isinf(least) ? error.needed : least, limit_);
        }
        find_planes(num_atoms_);
        std::vector<Domain> found = make_domains(num_atoms_, threads);
        double most = 0;
        for (const Domain& domain : found) most = std::max(most, bytes_of(domain));
        least = std::min(least, most);
        if (most <= limit_) {
            domains_ = std::move(found);
            break;
        }
        allowed *= 0.98 * limit_ / most;  // the atoms are not spread evenly
    }
    along_ = std::vector<double>();
    std::stable_sort(domains_.begin(), domains_.end(),
                     [&](const Domain& a, const Domain& b) { return bytes_of(a) > bytes_of(b); });
}

// Measures where atoms are along each direction.
void Domains::measure(const CellSystem& system, int threads) {
    const std::int64_t atoms = system.num_nodes;
    const std::array<bool, 3>& periodic = skin_watch_->periodic();
    const Vector3 heights = skin_watch_->heights();
    along_.resize(size(3 * atoms));
    wraps_.resize(size(3 * atoms));
    share(threads, atoms, [&](std::int64_t i, int) {
        for (std::size_t k = 0; k < 3; ++k) {
            double at = fraction(system.positions + 3 * i, skin_watch_->inverse(), k);
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

// Returns the numbers of parts for which all domains together cost least, if atoms are spread
// evenly.
Domains::Counts Domains::choose(double num_atoms, double limit) const {
    Counts most{}, best{};
    for (std::size_t k = 0; k < 3; ++k)
        most[k] =
            std::clamp<std::int64_t>(static_cast<std::int64_t>(length_[k] / cutoff_), 1, MOST_CUTS);
    const auto part_of_atoms = [&](const Counts& counts, double reach) {
        double part = 1;
        for (std::size_t k = 0; k < 3; ++k)
            if (counts[k] > 1)
                part *= 1.0 / static_cast<double>(counts[k]) + 2 * reach / length_[k];
        return part;
    };
    double least = std::numeric_limits<double>::infinity(), smallest = least;
    Counts counts{};
    for (counts[0] = 1; counts[0] <= most[0]; ++counts[0])
        for (counts[1] = 1; counts[1] <= most[1]; ++counts[1])
            for (counts[2] = 1; counts[2] <= most[2]; ++counts[2]) {
                const double local = num_atoms * part_of_atoms(counts, inner_reach()),
                             nodes = num_atoms * part_of_atoms(counts, outer_reach());
                const double needed = bytes_of(local, nodes);
                smallest = std::min(smallest, needed);
                const double all = (local + OUTER_COST * nodes) *
                                   static_cast<double>(counts[0] * counts[1] * counts[2]);
                if (needed > limit || all >= least) continue;
                least = all;
                best = counts;
            }
    if (std::isinf(least)) throw MemoryError(smallest, limit);
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
    const bool periodic = skin_watch_->periodic()[direction];
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

std::vector<Domains::Domain> Domains::make_domains(std::int64_t num_atoms, int threads) const {
    const auto number_of = [&](std::size_t k) {
        return static_cast<std::int64_t>(planes_[k].size()) - 1;
    };
    const auto count = size(number_of(0) * number_of(1) * number_of(2));
    struct Rows {
        std::array<std::vector<std::int32_t>, 3> atom, image;  // by ring
    };
    threads = std::max(threads, 1);
    std::vector<std::vector<Rows>> found(size(threads), std::vector<Rows>(count));
    FirstError error;
    const auto keep_error = [&](const auto& function) {
        try {
            function();
        } catch (...) {
            error.keep();
        }
    };
    // Each thread takes neighbouring atoms, so that the order does not depend on their number.
    share(threads, threads, [&](std::int64_t thread, int) {
        keep_error([&] {
            std::array<std::vector<Part>, 3> parts;
            const std::int64_t end = num_atoms * (thread + 1) / threads;
            for (std::int64_t i = num_atoms * thread / threads; i < end; ++i) {
                for (std::size_t k = 0; k < 3; ++k)
                    find_parts(k, along_[size(3 * i) + k], parts[k]);
                for (const Part& x : parts[0])
                    for (const Part& y : parts[1])
                        for (const Part& z : parts[2]) {
                            const std::int64_t domain =
                                (x.number * number_of(1) + y.number) * number_of(2) + z.number;
                            Rows& rows = found[size(thread)][size(domain)];
                            const auto ring = size(std::max({x.ring, y.ring, z.ring}));
                            rows.atom[ring].push_back(narrow(i));
                            rows.image[ring].push_back(packed({x.image, y.image, z.image}));
                        }
            }
        });
    });
    error.rethrow();
    std::vector<Domain> domains(count);
    share(threads, static_cast<std::int64_t>(count), [&](std::int64_t number, int) {
        keep_error([&] {
            Domain& domain = domains[size(number)];
            for (const std::size_t ring : {core, inner, outer}) {
                for (std::vector<Rows>& each : found) {
                    Rows& rows = each[size(number)];
                    const auto append = [](std::vector<std::int32_t>& to,
                                           std::vector<std::int32_t>& from) {
                        to.insert(to.end(), from.begin(), from.end());
                        from = std::vector<std::int32_t>();
                    };
                    append(domain.atom, rows.atom[ring]);
                    append(domain.image, rows.image[ring]);
                }
                if (ring == core) domain.num_core = domain.num_nodes();
                if (ring != outer) domain.num_local = domain.num_nodes();
            }
        });
    });
    error.rethrow();
    domains.erase(std::remove_if(domains.begin(), domains.end(),
                                 [](const Domain& domain) { return domain.num_core == 0; }),
                  domains.end());
    return domains;
}

void Domains::evaluate(const CellSystem& system, const Results& results, int descriptor_width,
                       int threads, const Evaluate& evaluate) {
    clear(results, system.num_nodes);
    gather(domains_[0], system, threads, gathered_[0]);
    for (std::size_t d = 0; d < domains_.size(); ++d) {
        Gathered& now = gathered_[d % 2];
        Gathered& other = gathered_[(d + 1) % 2];
        // A device needs no host for most of the time. This thread ends with the loop's body.
        std::future<void> beside = std::async([&, d] {
            if (d > 0) add(other, results, descriptor_width, 1);
            if (d + 1 < domains_.size()) gather(domains_[d + 1], system, 1, other);
        });
        predicted_ = bytes_of(*now.domain);
        const auto named = [&](const Sentence& sentence) {
            return sentence.named({now.domain->atom.begin(), now.domain->atom.end()});
        };
        try {
            evaluate(nodes_of(now, system), wanted(results, descriptor_width, now));
        } catch (const MemoryError&) {
            throw;
        } catch (const GeometryError& error) {
            throw GeometryError(named(error.sentence));
        } catch (const EngineError& error) {
            throw EngineError(error.kind(), named(error.sentence));
        }
        beside.get();
    }
    add(gathered_[(domains_.size() - 1) % 2], results, descriptor_width, threads);
}

void Domains::gather(const Domain& domain, const CellSystem& system, int threads,
                     Gathered& to) const {
    to.domain = &domain;
    std::array<bool, 3> cut{};
    for (std::size_t k = 0; k < 3; ++k) {
        cut[k] = planes_[k].size() > 2;
        to.periodic[k] = skin_watch_->periodic()[k] && !cut[k];
    }
    const Matrix3& full = skin_watch_->full();
    to.positions.resize(size(3 * domain.num_nodes()));
    to.types.resize(size(domain.num_nodes()));
    share(threads, domain.num_nodes(), [&](std::int64_t n, int) {
        const auto atom = std::int64_t(domain.atom[size(n)]);
        to.types[size(n)] = system.types[atom];
        double* const position = to.positions.data() + 3 * n;
        std::copy_n(system.positions + 3 * atom, 3, position);
        const std::array<int, 3> image = unpacked(domain.image[size(n)]);
        for (std::size_t k = 0; k < 3; ++k) {
            if (!cut[k] || !skin_watch_->periodic()[k]) continue;
            const double cells = image[k] - wraps_[size(3 * atom) + k];
            for (std::size_t c = 0; c < 3; ++c) position[c] += cells * full[k][c];
        }
    });
    to.weights.assign(size(domain.num_local), 0.0);
    for (std::int64_t n = 0; n < domain.num_core; ++n)
        to.weights[size(n)] =
            system.energy_weights != nullptr ? system.energy_weights[domain.atom[size(n)]] : 1.0;
}

CellSystem Domains::nodes_of(const Gathered& gathered, const CellSystem& system) const {
    CellSystem found;
    found.num_nodes = gathered.domain->num_nodes();
    found.num_outer = found.num_nodes - gathered.domain->num_local;
    found.positions = gathered.positions.data();
    found.types = gathered.types.data();
    found.cell = system.cell;
    found.periodic = gathered.periodic.data();
    found.energy_weights = gathered.weights.data();
    found.inputs = system.inputs;
    return found;
}

// Returns pointers to buffers of a domain for those results of the system that are wanted.
Results Domains::wanted(const Results& results, int descriptor_width, Gathered& to) {
    const std::size_t nodes = size(to.domain->num_nodes()), local = size(to.domain->num_local);
    const auto buffer = [](bool wanted, std::vector<double>& rows, std::size_t count) {
        if (!wanted) return static_cast<double*>(nullptr);
        rows.resize(count);
        return rows.data();
    };
    Results out{};
    out.energy = results.energy != nullptr ? &to.energy : nullptr;
    out.virial = results.virial != nullptr ? to.virial.data() : nullptr;
    // the energy of the core is summed from those of its nodes
    out.energies =
        buffer(results.energy != nullptr || results.energies != nullptr, to.energies, local);
    out.forces = buffer(results.forces != nullptr, to.forces, 3 * nodes);
    out.virials = buffer(results.virials != nullptr, to.virials, 9 * nodes);
    out.descriptors =
        buffer(results.descriptors != nullptr, to.descriptors, local * size(descriptor_width));
    return out;
}

void Domains::clear(const Results& results, std::int64_t num_atoms) {
    if (results.energy != nullptr) *results.energy = 0;
    if (results.forces != nullptr) std::fill_n(results.forces, 3 * num_atoms, 0.0);
    if (results.virial != nullptr) std::fill_n(results.virial, 9, 0.0);
    if (results.virials != nullptr) std::fill_n(results.virials, 9 * num_atoms, 0.0);
}

// Adds the results of a domain to those of the system.
void Domains::add(const Gathered& from, const Results& results, int descriptor_width, int threads) {
    const Domain& own = *from.domain;
    if (results.energy != nullptr)
        *results.energy = std::accumulate(from.energies.begin(),
                                          from.energies.begin() + own.num_core, *results.energy);
    for (std::size_t i = 0; results.virial != nullptr && i < 9; ++i)
        results.virial[i] += from.virial[i];
    const auto add_rows = [&](std::int64_t n) {
        const auto atom = std::int64_t(own.atom[size(n)]);
        for (std::int64_t i = 0; results.forces != nullptr && i < 3; ++i)
            results.forces[3 * atom + i] += from.forces[size(3 * n + i)];
        for (std::int64_t i = 0; results.virials != nullptr && i < 9; ++i)
            results.virials[9 * atom + i] += from.virials[size(9 * n + i)];
    };
    // An atom is in a core once, and can be several other nodes.
    share(threads, own.num_core, [&](std::int64_t n, int) {
        const auto atom = std::int64_t(own.atom[size(n)]);
        if (results.energies != nullptr) results.energies[atom] = from.energies[size(n)];
        if (results.descriptors != nullptr)
            std::copy_n(from.descriptors.data() + n * descriptor_width, descriptor_width,
                        results.descriptors + atom * descriptor_width);
        add_rows(n);
    });
    for (std::int64_t n = own.num_core; n < own.num_nodes(); ++n) add_rows(n);
}

}  // namespace mdcg
