#include "engine/ops/system/particle_mesh_cpu.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/integers.hpp"
#include "core/interrupt.hpp"
#include "core/threads.hpp"
#include "engine/backend/cpu/parallel.hpp"
#include "engine/backend/cpu/simd.hpp"
#include "kernels/particle_mesh.hpp"

namespace mdcg {

namespace {

// Calls body(i, thread) for blocks of work, and ends at an interrupt.
template <typename Body>
void each(int threads, std::int64_t count, const Body& body) {
    FirstError error;
    share_in_turns(threads, count, 1, [&](std::int64_t i, int thread) {
        if (error.failed()) return;
        try {
            if (thread == 0) poll_interrupt();
            body(i, thread);
        } catch (...) {
            error.keep();
        }
    });
    error.rethrow();
}

int wrapped(int point, int count) { return point < count ? point : point - count; }

}  // namespace

CpuParticleMesh::CpuParticleMesh(int window_points)
    : mesh_(window_points, WINDOW_WIDTH), window_points_(window_points) {}

void CpuParticleMesh::find_windows(const Waves& waves, std::int64_t count, const double* positions,
                                   int threads) {
    constexpr std::int64_t BLOCK = 256;
    windows_.resize(size(count));
    first_.resize(size(count));
    each(threads, ceil_div(count, BLOCK), [&](std::int64_t block, int) {
        for (std::int64_t n = block * BLOCK; n < std::min(count, (block + 1) * BLOCK); ++n) {
            const auto fractions = waves.phases(positions + 3 * n);
            double rests[3];
            for (std::size_t d = 0; d < 3; ++d) {
                unsigned long long rest = 0;
                const int count_d = mesh_.points(d);
                const int first =
                    mesh_point(fractions[d], count_d, rest) - (window_points_ / 2 - 1);
                first_[size(n)][d] = first < 0 ? first + count_d : first;
                rests[d] = static_cast<double>(rest) * 0x1p-64;
            }
            simd<double>().mesh_window(window_points_, rests, windows_[size(n)]);
        }
    });
    before_.assign(size(mesh_.points(0) + 1), 0);
    for (const auto& first : first_) ++before_[size(first[0]) + 1];
    for (std::size_t i = 1; i < before_.size(); ++i) before_[i] += before_[i - 1];
    order_.resize(size(count));
    next_.assign(before_.begin(), before_.end());
    for (std::int64_t n = 0; n < count; ++n) order_[size(next_[size(first_[size(n)][0])]++)] = n;
}

// A thread sums a plane of the mesh, with the ends of windows behind each row.
void CpuParticleMesh::spread(const double* charges, int threads) {
    const int rows = mesh_.points(1), columns = mesh_.points(2);
    const std::int64_t width = columns + WINDOW_WIDTH;
    numbers_[0].resize(size(mesh_.num_points()));
    each(threads, mesh_.points(0), [&](std::int64_t number, int thread) {
        std::vector<double>& plane = planes_[size(thread)];
        plane.assign(size(rows * width), 0.0);
        for (int k = 0; k < window_points_; ++k) {
            const std::int64_t first = number - k < 0 ? number - k + mesh_.points(0) : number - k;
            for (std::int64_t i = before_[size(first)]; i < before_[size(first) + 1]; ++i) {
                const std::int64_t atom = order_[size(i)];
                const MeshWindow& window = windows_[size(atom)];
                const auto& at = first_[size(atom)];
                double* to[WINDOW_WIDTH];
                for (int k2 = 0; k2 < window_points_; ++k2)
                    to[k2] = plane.data() + wrapped(at[1] + k2, rows) * width + at[2];
                simd<double>().mesh_spread(window_points_, charges[atom] * window.values[0][k],
                                           window, to);
            }
        }
        for (int row = 0; row < rows; ++row) {
            const double* from = plane.data() + row * width;
            double* to = numbers_[0].data() + (number * rows + row) * columns;
            std::copy_n(from, columns, to);
            for (int i = 0; i < WINDOW_WIDTH; ++i) to[i] += from[columns + i];
        }
    });
}

void CpuParticleMesh::transform(int depth, const std::vector<double>& table, int columns,
                                std::int64_t rows, int threads) {
    const std::vector<double>& from = numbers_[0];
    numbers_[1].resize(size(rows * columns));
    each(threads, rows / MESH_ROWS, [&](std::int64_t block, int thread) {
        std::vector<double>& packed = packed_[size(thread)];
        packed.resize(size(std::int64_t(depth) * MESH_ROWS));
        const std::int64_t row = block * MESH_ROWS;
        simd<double>().mesh_product(depth, columns, from.data() + row, rows, table.data(),
                                    packed.data(), numbers_[1].data() + row * columns);
    });
    numbers_[0].swap(numbers_[1]);
}

template <typename Body>
void CpuParticleMesh::each_pair(const Waves& waves, const Body& body) const {
    const std::int64_t step[3] = {std::int64_t(mesh_.modes(1)) * mesh_.modes(2), mesh_.modes(2), 1};
    for (const WaveColumn& column : waves.columns())
        for (int i = 0; i < column.count; ++i)
            body(column.first + i,
                 2 * (column.n1 * step[0] + std::abs(column.n2) * step[1] + column.from + i), step,
                 column.n2 < 0 ? -1.0 : 1.0);
}

void CpuParticleMesh::find_sums(const Waves& waves, std::int64_t count, const double* positions,
                                const double* charges, int threads,
                                std::vector<std::int64_t>& sums) {
    mesh_.update(waves);
    planes_.resize(size(std::max(threads, 1)));
    packed_.resize(size(std::max(threads, 1)));
    find_windows(waves, count, positions, threads);
    spread(charges, threads);
    for (std::size_t d = 0; d < 3; ++d) {
        const std::int64_t rows = d == 0   ? std::int64_t(mesh_.points(1)) * mesh_.points(2)
                                  : d == 1 ? std::int64_t(mesh_.points(2)) * mesh_.modes(0)
                                           : std::int64_t(mesh_.modes(0)) * mesh_.modes(1);
        transform(mesh_.points(d), mesh_.of_charges(d), mesh_.modes(d), rows, threads);
    }
    // products of cosines and sines, with the signs of n2
    each_pair(waves,
              [&](std::int64_t pair, std::int64_t at, const std::int64_t* step, double sign) {
                  const auto of = [&](int part1, int part2, int part3) {
                      return numbers_[0][size(at + part1 * step[0] + part2 * step[1] + part3)];
                  };
                  const double found[4] = {
                      of(0, 0, 0) - sign * of(1, 1, 0), of(1, 0, 1) + sign * of(0, 1, 1),
                      of(0, 0, 1) - sign * of(1, 1, 1), of(1, 0, 0) + sign * of(0, 1, 0)};
                  for (std::size_t i = 0; i < 4; ++i)
                      sums[size(4 * pair) + i] = std::llrint(found[i] * CHARGE_UNITS);
              });
}

void CpuParticleMesh::find_potentials(const Waves& waves, const std::vector<double>& factors,
                                      int threads) {
    const auto modes = [&](std::size_t d) { return std::int64_t(mesh_.modes(d)); };
    numbers_[0].assign(size(modes(0) * modes(1) * modes(2)), 0.0);
    each_pair(waves,
              [&](std::int64_t pair, std::int64_t at, const std::int64_t* step, double sign) {
                  const auto add = [&](int part1, int part2, int part3, double factor) {
                      numbers_[0][size(at + part1 * step[0] + part2 * step[1] + part3)] += factor;
                  };
                  const double* const f = &factors[size(4 * pair)];
                  add(0, 0, 0, f[0]), add(0, 0, 1, -f[3]), add(1, 0, 0, -f[1]), add(1, 0, 1, -f[2]);
                  add(1, 1, 0, -sign * f[0]), add(1, 1, 1, sign * f[3]);
                  add(0, 1, 0, -sign * f[1]), add(0, 1, 1, -sign * f[2]);
              });
    for (std::size_t d = 0; d < 3; ++d) {
        const std::int64_t rows = d == 0   ? modes(1) * modes(2)
                                  : d == 1 ? modes(2) * mesh_.points(0)
                                           : std::int64_t(mesh_.points(0)) * mesh_.points(1);
        transform(mesh_.modes(d), mesh_.of_factors(d), mesh_.potentials(d), rows, threads);
    }
}

CpuParticleMesh::Field CpuParticleMesh::field(std::int64_t atom) const {
    const auto& first = first_[size(atom)];
    const double* rows[WINDOW_WIDTH * WINDOW_WIDTH];
    for (int k1 = 0; k1 < window_points_; ++k1)
        for (int k2 = 0; k2 < window_points_; ++k2) {
            const std::int64_t row =
                std::int64_t(wrapped(first[0] + k1, mesh_.points(0))) * mesh_.points(1) +
                wrapped(first[1] + k2, mesh_.points(1));
            rows[k1 * window_points_ + k2] =
                numbers_[0].data() + row * mesh_.potentials(2) + first[2];
        }
    double sums[4];
    simd<double>().mesh_gather(window_points_, windows_[size(atom)], rows, sums);
    Field found{sums[0], {}};
    for (std::size_t d = 0; d < 3; ++d) found.slopes[d] = -mesh_.points(d) / TWO_PI * sums[d + 1];
    return found;
}

}  // namespace mdcg
