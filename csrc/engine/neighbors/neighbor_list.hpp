// All pairs of atoms closer than a cutoff, periodic images included, with a skin.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/neighbors/list_numbers.hpp"
#include "engine/neighbors/verlet_skin.hpp"

namespace mdcg {

// A full list of directed edges up to cutoff + skin, sorted by receiver, then sender, then cell. It
// is kept while no pair outside it can have come closer than the cutoff, also where the cell
// changes little. Made by counting in cells: linear in the number of atoms, in any kind of cell.
class NeighborList {
public:
    using Change = ListChange;  // of the arrays

    // In Å; skin 0 makes a list at every move.
    NeighborList(double cutoff, double skin) : watch_(cutoff, skin) {}

    // Throws GeometryError. `cell`: [3][3], rows are vectors, only those of periodic directions are
    // read (null: none). `threads`: 0 is OpenMP's own choice; the list does not depend on it.
    Change update(std::int64_t num_atoms, const double* positions, const double* cell,
                  const bool* periodic, int threads);
    // Forgets the list; the next update makes one.
    void reset() { watch_.reset(); }
    // The same, and gives its memory back.
    void release();

    std::int64_t num_atoms() const { return num_atoms_; }
    std::int64_t num_edges() const { return static_cast<std::int64_t>(sender_.size()); }
    const std::vector<std::int64_t>& row_ptr() const { return row_ptr_; }  // [num_atoms + 1]
    const std::vector<std::int32_t>& sender() const { return sender_; }    // [num_edges]
    const std::vector<std::int32_t>& receiver() const { return receiver_; }
    // [num_edges][3] Å: the vector of an edge is pos[receiver] - pos[sender] + shift
    const std::vector<double>& shifts() const { return shifts_; }
    // [num_edges][3] the same in units of the cell vectors
    std::vector<std::int32_t> cell_shifts() const;

    double cutoff() const { return watch_.cutoff(); }
    double skin() const { return watch_.skin(); }
    std::int64_t num_builds() const { return num_builds_; }
    std::int64_t num_updates() const { return num_updates_; }
    // Change whenever an update changes the arrays.
    const ListNumbers& numbers() const { return numbers_; }

private:
    struct Hit {
        std::int32_t atom, image;
    };
    struct Thread {
        std::vector<Hit> hits;
        std::size_t used = 0;                  // of hits
        std::vector<double> x, y, z, squares;  // candidates of one bin
        std::vector<Hit> candidates;
        std::size_t count = 0, own = 0;  // candidates; the first that lies in the bin itself
    };
    struct Row {
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

    VerletSkin watch_;
    std::int64_t num_atoms_ = 0, num_builds_ = 0, num_updates_ = 0;
    ListNumbers numbers_;
    std::array<bool, 3> periodic_{};
    Matrix3 full_{}, inverse_{};  // of the watch
    Vector3 heights_{};

    // Atoms by bin.
    std::array<std::int64_t, 3> bins_{}, stencil_{};
    std::vector<std::int64_t> bin_ptr_;   // [bins + 1]
    std::vector<std::int64_t> occupied_;  // bins with atoms
    std::vector<std::int32_t> atoms_;     // [num_atoms] by bin
    std::vector<double> x_, y_, z_;       // [num_atoms] by bin, wrapped into the cell
    std::vector<std::int32_t> wraps_;     // [num_atoms][3] cells that wrapping moved an atom by
    std::vector<std::int64_t> scratch_;
    std::vector<double> coordinates_;
    std::vector<Thread> threads_;
    std::vector<Row> found_;  // [num_atoms]
    std::vector<Hit> rows_;   // [num_edges] sender and image

    std::vector<std::int64_t> row_ptr_{0};
    std::vector<std::int32_t> sender_, receiver_, image_;
    std::vector<double> shifts_;
};

}  // namespace mdcg
