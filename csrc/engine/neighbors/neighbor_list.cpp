#include "engine/neighbors/neighbor_list.hpp"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/integers.hpp"
#include "core/interrupt.hpp"
#include "core/threads.hpp"
#include "engine/backend/cpu/parallel.hpp"
#include "engine/neighbors/bins.hpp"
#include "engine/neighbors/geometry_check.hpp"

namespace mdcg {

namespace {

// Limit of the number of bins: BINS_PER_ATOM * num_atoms + FEW_BINS.
constexpr std::int64_t BINS_PER_ATOM = 64, FEW_BINS = 1000;
// Fewer atoms per thread take less time than starting the thread.
constexpr std::int64_t ATOMS_PER_THREAD = 256;

// Packs the cells between two atoms, -MAX_STEPS to MAX_STEPS, into 10 bits for each direction.
std::int32_t pack(std::int64_t x, std::int64_t y, std::int64_t z) {
    return narrow((x + 512) << 20 | (y + 512) << 10 | (z + 512));
}

std::array<std::int32_t, 3> unpack(std::int32_t image) {
    return {(image >> 20) - 512, (image >> 10 & 1023) - 512, (image & 1023) - 512};
}

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}

}  // namespace

ListChange NeighborList::update(std::int64_t num_atoms, const double* positions, const double* cell,
                                const bool* periodic, int threads) {
    if (threads <= 0) threads = omp_get_max_threads();
    threads = usable_threads(static_cast<int>(
        std::clamp<std::int64_t>(num_atoms / ATOMS_PER_THREAD, 1, std::max(threads, 1))));
    ++num_updates_;
    const ListChange change = verlet_skin_.needs_rebuild(num_atoms, positions, cell, periodic);
    if (change == ListChange::none) return change;
    numbers_.shifts = next_list_number();
    if (change == ListChange::shifts) {
        fill_shifts(threads);
        return change;
    }
    numbers_.edges = next_list_number();
    num_atoms_ = num_atoms;
    try {
        build(positions, threads);
    } catch (...) {
        clear();
        throw;
    }
    verlet_skin_.keep(positions);
    return change;
}

void NeighborList::release() {
    verlet_skin_ = VerletSkin(cutoff(), skin());
    numbers_ = {};
    clear();
}

void NeighborList::build(const double* positions, int threads) {
    ++num_builds_;
    const double reach = verlet_skin_.reach();
    bin(positions, reach);
    search(reach, threads);
    transpose(threads);
    fill_shifts(threads);
}

// Frees all memory. It also works on an unfinished list, whose arrays differ in length.
void NeighborList::clear() noexcept {
    const auto free = [](auto&... arrays) {
        (std::remove_reference_t<decltype(arrays)>().swap(arrays), ...);
    };
    num_atoms_ = 0;
    row_ptr_.resize(1);
    row_ptr_.shrink_to_fit();
    row_ptr_[0] = 0;
    free(sender_, receiver_, image_, shifts_, bin_ptr_, occupied_, atoms_, x_, y_, z_, wraps_);
    free(scratch_, coordinates_, threads_, hits_of_, rows_);
}

// Wraps atoms into the cell and sorts them by bin.
void NeighborList::bin(const double* positions, double reach) {
    const auto n = size(num_atoms_);
    const Matrix3 &full = verlet_skin_.full(), &inverse = verlet_skin_.inverse();
    const std::array<bool, 3>& periodic = verlet_skin_.periodic();
    const Vector3 heights = verlet_skin_.heights();
    wraps_.assign(3 * n, 0);
    coordinates_.resize(3 * n);  // Å along open directions, fractions of the cell along others
    Vector3 extent{};
    for (std::size_t k = 0; k < 3; ++k) {
        double* along = coordinates_.data() + k * n;
        for (std::size_t i = 0; i < n; ++i) {
            const double* p = positions + 3 * i;
            along[i] = p[0] * inverse[0][k] + p[1] * inverse[1][k] + p[2] * inverse[2][k];
            if (!periodic[k]) continue;
            const double whole = std::floor(along[i]);
            wraps_[3 * i + k] = static_cast<std::int32_t>(whole);
            along[i] -= whole;
        }
        extent[k] = periodic[k] ? heights[k] : close_gaps(along, n, reach);
    }
    const Bins bins = choose_bins(extent, periodic, reach, BINS_PER_ATOM * num_atoms_ + FEW_BINS);
    bins_ = bins.count;
    stencil_ = bins.stencil;

    scratch_.resize(n);
    const auto total = size(bins_[0] * bins_[1] * bins_[2]);
    bin_ptr_.assign(total + 1, 0);
    for (std::size_t i = 0; i < n; ++i) {
        std::int64_t where = 0;
        for (std::size_t k = 3; k-- > 0;) {  // the first axis is the fastest
            const double part = coordinates_[k * n + i] / (periodic[k] ? 1.0 : extent[k]);
            const auto at =
                extent[k] > 0 ? static_cast<std::int64_t>(part * static_cast<double>(bins_[k])) : 0;
            where = where * bins_[k] + std::clamp<std::int64_t>(at, 0, bins_[k] - 1);
        }
        scratch_[i] = where;
        ++bin_ptr_[size(where) + 1];
    }
    occupied_.clear();
    for (std::size_t b = 0; b < total; ++b) {
        if (bin_ptr_[b + 1] > 0) occupied_.push_back(static_cast<std::int64_t>(b));
        bin_ptr_[b + 1] += bin_ptr_[b];
    }
    atoms_.resize(n), x_.resize(n), y_.resize(n), z_.resize(n);
    // bin_ptr_[b] advances to the end of bin b; afterwards all are moved back by one bin
    for (std::size_t i = 0; i < n; ++i) {
        const auto at = size(bin_ptr_[size(scratch_[i])]++);
        const std::int32_t* w = wraps_.data() + 3 * i;
        const double* p = positions + 3 * i;
        Vector3 wrapped{};
        for (std::size_t c = 0; c < 3; ++c)
            wrapped[c] = p[c] - (w[0] * full[0][c] + w[1] * full[1][c] + w[2] * full[2][c]);
        atoms_[at] = narrow(i);
        x_[at] = wrapped[0], y_[at] = wrapped[1], z_[at] = wrapped[2];
    }
    for (std::size_t b = total; b > 0; --b) bin_ptr_[b] = bin_ptr_[b - 1];
    bin_ptr_[0] = 0;
}

// Copies the atoms and images in the bins around a bin to the candidates of a thread.
void NeighborList::collect(std::int64_t bin, Thread& own) const {
    const Matrix3& full = verlet_skin_.full();
    const std::array<bool, 3>& periodic = verlet_skin_.periodic();
    const std::int64_t nx = bins_[0], ny = bins_[1], nz = bins_[2];
    const std::int64_t bx = bin % nx, by = bin / nx % ny, bz = bin / nx / ny;
    std::size_t at = 0;
    for (std::int64_t z = bz - stencil_[2]; z <= bz + stencil_[2]; ++z) {
        if (!periodic[2] && (z < 0 || z >= nz)) continue;
        const std::int64_t mz = floor_div(z, nz);
        for (std::int64_t y = by - stencil_[1]; y <= by + stencil_[1]; ++y) {
            if (!periodic[1] && (y < 0 || y >= ny)) continue;
            const std::int64_t my = floor_div(y, ny);
            const std::int64_t row = ((z - mz * nz) * ny + (y - my * ny)) * nx;
            std::int64_t first = bx - stencil_[0], last = bx + stencil_[0];
            if (!periodic[0])
                first = std::max<std::int64_t>(first, 0), last = std::min(last, nx - 1);
            while (first <= last) {  // image by image of this row of bins
                const std::int64_t mx = floor_div(first, nx);
                const std::int64_t end = std::min(last, mx * nx + nx - 1);
                const auto begin = bin_ptr_.begin() + row - mx * nx;
                const auto from = size(begin[first]);
                const auto to = size(begin[end + 1]);
                if (z == bz && y == by && mx == 0) own.first_own = at + size(begin[bx]) - from;
                first = end + 1;
                if (at + to - from > own.candidates.size()) {
                    check_candidates(static_cast<std::int64_t>(at + to - from),
                                     verlet_skin_.reach());
                    const std::size_t size = 2 * (at + to - from);
                    own.x.resize(size), own.y.resize(size), own.z.resize(size);
                    own.squares.resize(size);
                    own.candidates.resize(size);  // last, because its size is tested above
                }
                Vector3 shift{};
                for (std::size_t c = 0; c < 3; ++c)
                    shift[c] = static_cast<double>(mx) * full[0][c] +
                               static_cast<double>(my) * full[1][c] +
                               static_cast<double>(mz) * full[2][c];
                const std::int32_t image = pack(mx, my, mz);
                for (std::size_t i = from; i < to; ++i, ++at) {
                    own.x[at] = x_[i] + shift[0];
                    own.y[at] = y_[i] + shift[1];
                    own.z[at] = z_[i] + shift[2];
                    own.candidates[at] = {atoms_[i], image};
                }
            }
        }
    }
    own.num_candidates = at;
}

// Finds the neighbours of each atom.
void NeighborList::search(double reach, int threads) {
    hits_of_.resize(size(num_atoms_));
    threads_.resize(size(threads));
    for (Thread& each : threads_) each.num_hits = 0;
    const double square = reach * reach;
    const auto bins = static_cast<std::int64_t>(occupied_.size());
    FirstError error;
    share_in_turns(threads, bins, 16, [&](std::int64_t b, int thread) {
        if (error.failed()) return;
        try {
            if (thread == 0) poll_interrupt();
            search_bin(occupied_[size(b)], square, thread);
        } catch (...) {
            error.keep();
        }
    });
    error.rethrow();
}

void NeighborList::search_bin(std::int64_t number, double square, int thread) {
    Thread& own = threads_[size(thread)];
    const auto bin = size(number);
    collect(number, own);
    const std::size_t count = own.num_candidates;
    const double *x = own.x.data(), *y = own.y.data(), *z = own.z.data();
    const AtomImage* candidates = own.candidates.data();
    double* squares = own.squares.data();
    const auto first = size(bin_ptr_[bin]);
    const auto last = size(bin_ptr_[bin + 1]);
    for (std::size_t i = first; i < last; ++i) {
        if (own.hits.size() < own.num_hits + count) own.hits.resize(2 * (own.num_hits + count));
        const double x0 = x_[i], y0 = y_[i], z0 = z_[i];
#pragma omp simd
        for (std::size_t j = 0; j < count; ++j) {
            const double dx = x[j] - x0, dy = y[j] - y0, dz = z[j] - z0;
            squares[j] = dx * dx + dy * dy + dz * dz;
        }
        squares[own.first_own + i - first] = square;  // the atom is no neighbour of itself
        AtomImage* hits = own.hits.data() + own.num_hits;
        std::size_t taken = 0;
        for (std::size_t j = 0; j < count; ++j) {  // without a branch, which would be mispredicted
            hits[taken] = candidates[j];
            taken += size(squares[j] < square);
        }
        check_neighbors(static_cast<std::int64_t>(taken), atoms_[i], std::sqrt(square));
        hits_of_[size(atoms_[i])] = {thread, narrow(taken), own.num_hits};
        own.num_hits += taken;
    }
}

// Turns the neighbours of each sender, which are in the order of bins and threads, into rows of
// receivers. Senders are visited in ascending order, so that rows are sorted by sender.
void NeighborList::transpose(int threads) {
    const auto n = size(num_atoms_);
    const std::array<bool, 3>& periodic = verlet_skin_.periodic();
    bool repeated = false;  // whether two atoms can have several edges
    for (std::size_t k = 0; k < 3; ++k) repeated |= periodic[k] && 2 * stencil_[k] >= bins_[k] - 1;
    row_ptr_.assign(n + 1, 0);
    const auto first_of = [&](std::int64_t thread) {
        return narrow(num_atoms_ * thread / threads);
    };
    share(threads, threads, [&](std::int64_t t, int) {
        const std::int32_t low = first_of(t), high = first_of(t + 1);
        for (const Thread& each : threads_)
            for (std::size_t h = 0; h < each.num_hits; ++h)
                if (const std::int32_t atom = each.hits[h].atom; atom >= low && atom < high)
                    ++row_ptr_[size(atom) + 1];
    });
    for (std::size_t i = 0; i < n; ++i) row_ptr_[i + 1] += row_ptr_[i];
    const auto edges = size(row_ptr_[n]);
    rows_.resize(edges), sender_.resize(edges), receiver_.resize(edges), image_.resize(edges);
    scratch_.assign(row_ptr_.begin(), row_ptr_.end() - 1);
    share(threads, threads, [&](std::int64_t t, int) {
        const std::int32_t low = first_of(t), high = first_of(t + 1);
        for (std::size_t s = 0; s < n; ++s) {
            const HitRange& row = hits_of_[s];
            const AtomImage* hits = threads_[size(row.thread)].hits.data() + row.begin;
            for (std::int32_t h = 0; h < row.count; ++h) {
                const auto atom = size(hits[h].atom);
                if (hits[h].atom < low || hits[h].atom >= high) continue;
                rows_[size(scratch_[atom]++)] = {narrow(s), hits[h].image};
            }
        }
        for (std::int32_t i = low; i < high; ++i) {
            const auto begin = size(row_ptr_[size(i)]);
            const auto end = size(row_ptr_[size(i) + 1]);
            if (repeated)
                std::sort(rows_.begin() + std::int64_t(begin), rows_.begin() + std::int64_t(end),
                          [](const AtomImage& a, const AtomImage& b) {
                              return a.atom != b.atom ? a.atom < b.atom : a.image < b.image;
                          });
            for (std::size_t e = begin; e < end; ++e) {
                sender_[e] = rows_[e].atom;
                image_[e] = rows_[e].image;
                receiver_[e] = i;
            }
        }
    });
}

std::vector<std::int32_t> NeighborList::cell_shifts() const {
    std::vector<std::int32_t> out(3 * sender_.size());
    for (std::size_t e = 0; e < sender_.size(); ++e) {
        const auto m = unpack(image_[e]);
        const std::int32_t* ws = wraps_.data() + 3 * size(sender_[e]);
        const std::int32_t* wr = wraps_.data() + 3 * size(receiver_[e]);
        for (std::size_t k = 0; k < 3; ++k) out[3 * e + k] = m[k] + ws[k] - wr[k];
    }
    return out;
}

void NeighborList::fill_shifts(int threads) {
    const Matrix3& full = verlet_skin_.full();
    shifts_.resize(3 * sender_.size());
    const auto edges = static_cast<std::int64_t>(sender_.size());
    share(threads, edges, [&](std::int64_t edge, int) {
        const auto e = size(edge);
        const auto m = unpack(image_[e]);
        const std::int32_t* ws = wraps_.data() + 3 * size(sender_[e]);
        const std::int32_t* wr = wraps_.data() + 3 * size(receiver_[e]);
        const double a = m[0] + ws[0] - wr[0], b = m[1] + ws[1] - wr[1], c = m[2] + ws[2] - wr[2];
        // along open directions the factor is 0, and the vector is finite
        for (std::size_t k = 0; k < 3; ++k)
            shifts_[3 * e + k] = a * full[0][k] + b * full[1][k] + c * full[2][k];
    });
}

}  // namespace mdcg
