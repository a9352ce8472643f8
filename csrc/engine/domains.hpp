// Large systems as domains that are evaluated one after the other, so that rows and edges take the
// memory of one domain.
//
// A domain is a box of the cell. Its nodes are the atoms in the box (core) and all atoms on which
// their energies depend: those within a cutoff for each layer of the network. Periodic images are
// nodes of their own in the directions that are cut; in the others a domain is periodic as the
// system is. An energy belongs to the domain that has the atom in its core; forces and virials of a
// domain are those of its core's energy, and are added to the atoms of all its nodes.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/batch.hpp"
#include "engine/graph.hpp"
#include "engine/neighbors/verlet_skin.hpp"

namespace mdcg {

// Estimates the edges of an atom of a system, on average, from the numbers of atoms in bins.
double estimate_neighbors(const CellSystem& system, double reach);

class Domains {
public:
    // Bytes that an evaluation needs for a domain of so many local nodes and nodes.
    using Bytes = std::function<double(double local, double nodes)>;

    // `layers`: cutoffs from an atom to those farthest away on which its energy depends.
    Domains(double cutoff, int layers);

    // Cuts a system into domains of at most `limit` bytes each, unless the domains of the last call
    // are still good: they have a margin of the system's skin. Throws GeometryError for wrong
    // positions, and MemoryError if domains as thick as the cutoff still need more.
    void cut(const CellSystem& system, const Bytes& bytes, double limit, int threads);

    std::size_t count() const { return domains_.size(); }
    // How often the system was cut, and the nodes of the largest domain.
    std::int64_t num_cuts() const { return num_cuts_; }
    std::int64_t most_nodes() const {
        return domains_.empty() ? 0 : static_cast<std::int64_t>(domains_.front().atom.size());
    }
    // The next call of cut() makes other domains, as after an evaluation that needed more memory.
    void forget() { watch_.reset(); }

    // The nodes of a domain at the positions of the system, valid until the next call. Cores come
    // first, and nodes that only send last.
    CellSystem take(std::size_t domain, const CellSystem& system, int threads);
    // Where results of the domain that was taken last go, if `results` of the system are wanted.
    Results wanted(const Results& results, int descriptor_width);
    // Adds these results to those of the system; start() sets them to zero before the first domain.
    void start(const Results& results, std::int64_t num_atoms) const;
    void add(const Results& results, int threads) const;
    // The atom of a node of the domain that was taken last.
    std::vector<std::int64_t> atoms() const;

private:
    struct Domain {
        std::vector<std::int32_t> atom;   // [nodes]
        std::vector<std::int32_t> image;  // [nodes] cells from the wrapped atom; see packed()
        std::int64_t num_core = 0, num_local = 0;
    };
    // A part of a direction that an atom, or an image of it, is in or near.
    enum Ring { core, inner, outer };  // inner: other local nodes
    struct Part {
        std::int64_t number;
        int image;  // cell vectors from the wrapped atom to the node
        Ring ring;
    };
    using Counts = std::array<std::int64_t, 3>;

    // Lengths, in Å, from a box to the farthest local nodes and to the farthest nodes around it.
    double inner_reach() const { return (layers_ - 1) * cutoff_ + (layers_ > 1 ? margin_ : 0.0); }
    double outer_reach() const { return layers_ * cutoff_ + margin_; }
    Counts choose(double num_atoms, const Bytes& bytes, double limit) const;
    void measure(const CellSystem& system, int threads);
    void find_planes(std::int64_t num_atoms);
    void find_parts(std::size_t direction, double along, std::vector<Part>& parts) const;
    void divide(std::int64_t num_atoms, int threads);

    double cutoff_;
    int layers_;
    double margin_ = 0;  // Å, with a little for rounding
    std::unique_ptr<VerletSkin> watch_;
    std::int64_t num_cuts_ = 0;
    Counts counts_{1, 1, 1};  // parts along each direction
    // Perpendicular to the planes of the cell, in Å.
    Vector3 low_{}, length_{};
    std::array<std::vector<double>, 3> planes_;  // [parts + 1]
    std::vector<double> along_;                  // [num_atoms][3], while domains are made
    std::vector<std::int32_t> wraps_;            // [num_atoms][3] cells from the cell to the atom
    std::vector<Domain> domains_;                // those with most nodes first

    // The domain that was taken last.
    const Domain* taken_ = nullptr;
    std::array<bool, 3> periodic_{};
    std::vector<double> positions_, weights_;  // [nodes][3], [local]
    std::vector<std::int32_t> types_;          // [nodes]
    double energy_ = 0;
    std::array<double, 9> virial_{};
    std::vector<double> energies_, forces_, virials_, descriptors_;
    int descriptor_width_ = 0;
};

}  // namespace mdcg
