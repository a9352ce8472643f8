// Neighbour lists made on a CPU.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/neighbors/list_numbers.hpp"
#include "engine/neighbors/verlet_skin.hpp"

namespace mdcg {

// All directed edges up to cutoff + skin, periodic images included, sorted by receiver, then
// sender, then cell. Atoms are sorted into bins, so the time is linear in the number of atoms.
class NeighborList {
public:
    // Lengths in Å. With skin 0 a list is made whenever an atom moves.
    NeighborList(double cutoff, double skin) : verlet_skin_(cutoff, skin) {}

    // Makes a new list unless the last one is still valid (see VerletSkin). Throws GeometryError.
    // `positions`: [num_atoms][3] Å; `cell`: [3][3] Å, rows are vectors, only those of periodic
    // directions are read (null: an open system); `periodic`: [3]; `threads`: 0 is OpenMP's own
    // choice. The list does not depend on the number of threads.
    ListChange update(std::int64_t num_atoms, const double* positions, const double* cell,
                      const bool* periodic, int threads);
    // Forgets the list, so that the next update makes one.
    void reset() { verlet_skin_.reset(); }
    // Forgets the list and frees its memory.
    void release();

    std::int64_t num_atoms() const { return num_atoms_; }
    std::int64_t num_edges() const { return static_cast<std::int64_t>(sender_.size()); }
    const std::vector<std::int64_t>& row_ptr() const { return row_ptr_; }  // [num_atoms + 1]
    const std::vector<std::int32_t>& sender() const { return sender_; }    // [num_edges]
    const std::vector<std::int32_t>& receiver() const { return receiver_; }
    // [num_edges][3] Å: the vector of an edge is pos[receiver] - pos[sender] + shift
    const std::vector<double>& shifts() const { return shifts_; }
    // Computes [num_edges][3], the shifts in units of the cell vectors.
    std::vector<std::int32_t> cell_shifts() const;

    // The cell [3][3] and the periodic directions [3] of the last update.
    const double* cell() const { return verlet_skin_.full()[0].data(); }
    const bool* periodic() const { return verlet_skin_.periodic().data(); }
    double cutoff() const { return verlet_skin_.cutoff(); }
    double skin() const { return verlet_skin_.skin(); }
    std::int64_t num_builds() const { return num_builds_; }
    std::int64_t num_updates() const { return num_updates_; }
    // Numbers that change whenever an update changes the arrays.
    const ListNumbers& numbers() const { return numbers_; }

private:
    // An atom in a periodic image; see pack().
    struct AtomImage {
        std::int32_t atom, image;
    };
    struct Thread {
        std::vector<AtomImage> hits;  // neighbours of this thread's atoms, atom by atom
        std::size_t num_hits = 0;
        // Atoms and images that may be neighbours of the atoms of one bin.
        std::vector<AtomImage> candidates;
        std::vector<double> x, y, z, squares;  // positions; squares of distances from one atom
        std::size_t num_candidates = 0;
        std::size_t first_own = 0;  // the first candidate that lies in the bin itself
    };
    // Where the neighbours of an atom are among the hits of a thread.
    struct HitRange {
        std::int32_t thread, count;
        std::size_t begin;
    };

    void build(const double* positions, int threads);
    void clear() noexcept;
    void bin(const double* positions, double reach);
    void search(double reach, int threads);
    void search_bin(std::int64_t number, double square, int thread);
    void collect(std::int64_t bin, Thread& own) const;
    void transpose(int threads);
    void fill_shifts(int threads);

    VerletSkin verlet_skin_;
    std::int64_t num_atoms_ = 0, num_builds_ = 0, num_updates_ = 0;
    ListNumbers numbers_;

    // Atoms by bin.
    std::array<std::int64_t, 3> bins_{}, stencil_{};
    std::vector<std::int64_t> bin_ptr_;   // [bins + 1]
    std::vector<std::int64_t> occupied_;  // bins with atoms
    std::vector<std::int32_t> atoms_;     // [num_atoms] by bin
    std::vector<double> x_, y_, z_;       // [num_atoms] by bin, wrapped into the cell
    std::vector<std::int32_t> wraps_;     // [num_atoms][3] cells that wrapping moved an atom by
    std::vector<std::int64_t> scratch_;   // [num_atoms]
    std::vector<double> coordinates_;     // [3][num_atoms]
    std::vector<Thread> threads_;
    std::vector<HitRange> hits_of_;  // [num_atoms] as a sender
    std::vector<AtomImage> rows_;    // [num_edges] sender and image, by receiver

    std::vector<std::int64_t> row_ptr_{0};                 // [num_atoms + 1]
    std::vector<std::int32_t> sender_, receiver_, image_;  // [num_edges]
    std::vector<double> shifts_;                           // [num_edges][3]
};

}  // namespace mdcg
