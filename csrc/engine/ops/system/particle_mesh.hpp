// The particle mesh of long-range sums: the same waves as the direct sum, from charges on a mesh in
// fractions of the cell. There is no FFT, because an eighth of the modes of the mesh is wanted:
// three products of matrices give these alone.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/ops/system/waves.hpp"

namespace mdcg {

// Pairs of waves from which on the mesh takes the place of the direct sum. A cell of water has 1.3
// of them for each atom.
constexpr std::int64_t MESH_PAIRS_CPU = 2000, MESH_PAIRS_CUDA = 8000;

class ParticleMesh {
public:
    // Whether to use the mesh, for a limit above. The answer depends on the cell and the limit
    // alone, so that all processes on devices of one kind give the same one. Very skewed cells have
    // few waves and many points, and very long ones large matrices.
    static bool is_worthwhile(const Waves& waves, std::int64_t least_pairs);

    // A charge is spread on window_points points along each direction. `repeated` points of the
    // last direction follow its last one again, in potentials.
    ParticleMesh(int window_points, int repeated)
        : window_points_(window_points), repeated_(repeated) {}

    // Takes the sizes from the largest |n|. Returns whether they have changed.
    bool update(const Waves& waves);

    // Charges are on points, and their transforms are modes: cosines and sines in turn of n = 0, 1,
    // .., and zeros.
    int points(std::size_t direction) const { return sizes_[direction].points; }
    int modes(std::size_t direction) const { return sizes_[direction].modes; }
    int potentials(std::size_t direction) const {  // points, with those that are repeated
        return points(direction) + (direction == 2 ? repeated_ : 0);
    }
    std::int64_t num_points() const;
    // The largest number of items that a transform but the last one writes.
    std::int64_t most_items() const;
    // The table [points][modes] that transforms charges. It is divided by the window's transform.
    const std::vector<double>& of_charges(std::size_t direction) const {
        return sizes_[direction].of_charges;
    }
    // The table [modes][potentials] that transforms factors of modes to potentials.
    const std::vector<double>& of_factors(std::size_t direction) const {
        return sizes_[direction].of_factors;
    }

private:
    struct Size {
        int bound = -1, points = 0, modes = 0;
        std::vector<double> of_charges, of_factors;
    };
    // The transform of the window at n of so many points.
    double window_transform(int n, int points) const;

    int window_points_, repeated_;
    std::array<Size, 3> sizes_;
};

}  // namespace mdcg
