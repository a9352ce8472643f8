// Long-range sums by a particle mesh on CPUs. Numbers are summed in a fixed order, so that results
// are the same for every number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/ops/system/particle_mesh.hpp"

namespace mdcg {

class CpuParticleMesh {
public:
    explicit CpuParticleMesh(int window_points);

    // Writes sums [pair][4] of `charges` at `positions` [count][3]; see WaveKernels::wave_sums.
    void find_sums(const Waves& waves, std::int64_t count, const double* positions,
                   const double* charges, int threads, std::vector<std::int64_t>& sums);
    // Finds the potentials of factors [pair][4]; see WaveKernels::wave_fields.
    void find_potentials(const Waves& waves, const std::vector<double>& factors, int threads);
    // Sums re(t) and n im(t) in each direction at an atom of the last find_sums.
    struct Field {
        double real, slopes[3];
    };
    Field field(std::int64_t atom) const;

private:
    void find_windows(const Waves& waves, std::int64_t count, const double* positions, int threads);
    void spread(const double* charges, int threads);
    // Replaces the numbers [depth][rows] by their product [rows][columns] with a table.
    void transform(int depth, const std::vector<double>& table, int columns, std::int64_t rows,
                   int threads);
    // Calls body(pair, offset of the product of its cosines, steps to those with a sine of each
    // direction, sign of n2).
    template <typename Body>
    void each_pair(const Waves& waves, const Body& body) const;

    ParticleMesh mesh_;
    int window_points_;
    std::vector<MeshWindow> windows_;        // [atoms]
    std::vector<std::array<int, 3>> first_;  // [atoms] first point of each window
    // Atoms in order of their first plane, and the number of those before each plane.
    std::vector<std::int64_t> order_, before_, next_;
    std::vector<double> numbers_[2];  // of the mesh, or of modes; the second is for results
    std::vector<std::vector<double>> planes_, packed_;  // [threads]
};

}  // namespace mdcg
