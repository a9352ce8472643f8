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

class Domains {
public:
    // About the bytes that an evaluation of so many local nodes, nodes and edges needs.
    using Bytes = std::function<double(double num_local, double num_nodes, double num_edges)>;

    // `layers`: cutoffs from an atom to those farthest away on which its energy depends. `limit`:
    // bytes that an evaluation may take.
    Domains(double cutoff, int layers, Bytes bytes, double limit);

    // Returns whether a system needs more memory than the limit as a whole, by estimate. If so,
    // divides it into domains, unless those of the last call are still good: they have a margin of
    // the system's skin. Throws GeometryError for wrong positions, and MemoryError if domains as
    // thick as the cutoff still need more.
    bool divide(const CellSystem& system, int threads);
    // Whether a system of so many atoms may need more memory than the limit.
    bool may_divide(std::int64_t num_atoms) const {
        const auto atoms = static_cast<double>(num_atoms);
        return 2 * bytes_(atoms, atoms, 0) > limit_;  // edges take less than rows
    }
    // Corrects estimates after an evaluation that needed more bytes. The next call of divide()
    // decides again.
    void correct(double needed);

    bool is_divided() const { return !domains_.empty(); }
    std::size_t count() const { return domains_.size(); }
    // Number of divisions so far.
    std::int64_t num_divisions() const { return num_divisions_; }
    // Nodes of the largest domain, images included.
    std::int64_t max_nodes() const;

    // Evaluates the domains one after the other, and adds their results to those of the system.
    // `evaluate` evaluates the nodes of a domain: those of the core come first, and nodes that only
    // send last. Errors name atoms of the system.
    using Evaluate = std::function<void(const CellSystem& nodes, const Results& results)>;
    void evaluate(const CellSystem& system, const Results& results, int descriptor_width,
                  int threads, const Evaluate& evaluate);

private:
    struct Domain {
        std::vector<std::int32_t> atom;   // [num_nodes]
        std::vector<std::int32_t> image;  // [num_nodes] cells from the wrapped atom; see packed()
        std::int64_t num_core = 0, num_local = 0;

        std::int64_t num_nodes() const { return static_cast<std::int64_t>(atom.size()); }
    };
    // The nodes of a domain at the positions of a system, and their results.
    struct Gathered {
        const Domain* domain = nullptr;
        std::array<bool, 3> periodic{};
        std::vector<double> positions;    // [num_nodes][3]
        std::vector<double> weights;      // [num_local]
        std::vector<std::int32_t> types;  // [num_nodes]
        double energy = 0;
        std::array<double, 9> virial{};
        std::vector<double> energies;     // [num_local]
        std::vector<double> forces;       // [num_nodes][3]
        std::vector<double> virials;      // [num_nodes][3][3]
        std::vector<double> descriptors;  // [num_local][descriptor_width]
    };
    // Where a node of a domain is: in its box; near enough to have energies; or only sending.
    enum Ring { core, inner, outer };
    // A part of a direction that an atom, or an image of it, is in or near.
    struct Part {
        std::int64_t number;
        int image;  // cell vectors from the wrapped atom to the node
        Ring ring;
    };
    using Counts = std::array<std::int64_t, 3>;

    // Lengths, in Å, from a box to the farthest local nodes and to the farthest nodes around it.
    double inner_reach() const { return (layers_ - 1) * cutoff_ + (layers_ > 1 ? margin_ : 0.0); }
    double outer_reach() const { return layers_ * cutoff_ + margin_; }
    // The estimate of `bytes_` for a domain.
    double bytes_of(double num_local, double num_nodes) const;
    double bytes_of(const Domain& domain) const {
        return bytes_of(static_cast<double>(domain.num_local),
                        static_cast<double>(domain.num_nodes()));
    }
    void estimate(const CellSystem& system);
    void cut(const CellSystem& system, int threads);
    Counts choose(double num_atoms, double limit) const;
    void measure(const CellSystem& system, int threads);
    void find_planes(std::int64_t num_atoms);
    void find_parts(std::size_t direction, double along, std::vector<Part>& parts) const;
    std::vector<Domain> make_domains(std::int64_t num_atoms, int threads) const;
    void gather(const Domain& domain, const CellSystem& system, int threads, Gathered& to) const;
    CellSystem nodes_of(const Gathered& gathered, const CellSystem& system) const;
    static Results wanted(const Results& results, int descriptor_width, Gathered& to);
    static void clear(const Results& results, std::int64_t num_atoms);
    static void add(const Gathered& from, const Results& results, int descriptor_width,
                    int threads);

    double cutoff_;
    int layers_;
    Bytes bytes_;
    double limit_;

    // The system that was estimated last.
    std::unique_ptr<VerletSkin> skin_watch_;  // null: the next call of divide() estimates
    double margin_ = 0;                       // its skin with a little for rounding, Å
    std::int64_t num_atoms_ = -1;
    double neighbors_ = 0;    // mean number of neighbours of an atom, without skin
    double whole_bytes_ = 0;  // estimate for the whole system, without correction
    double predicted_ = 0;    // bytes of the evaluation to come, by estimate
    double correction_ = 1;   // by how much estimates for this system fell short
    std::int64_t num_divisions_ = 0;

    Counts counts_{1, 1, 1};  // parts along each direction
    // The lowest position and the length of the system perpendicular to the planes of the cell, Å.
    Vector3 low_{}, length_{};
    std::array<std::vector<double>, 3> planes_;  // [parts + 1]
    std::vector<double> along_;                  // [num_atoms][3], while domains are made
    std::vector<std::int32_t> wraps_;            // [num_atoms][3] cells from the cell to the atom
    std::vector<Domain> domains_;                // those that need most memory first

    // The domain that is evaluated, and another that is gathered or added meanwhile.
    std::array<Gathered, 2> gathered_;
};

}  // namespace mdcg
