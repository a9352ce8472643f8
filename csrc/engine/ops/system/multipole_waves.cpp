#include "engine/ops/system/multipole_waves.hpp"

#include <algorithm>
#include <cmath>

#include "core/integers.hpp"
#include "core/interrupt.hpp"
#include "core/threads.hpp"
#include "engine/backend/cpu/parallel.hpp"
#include "engine/backend/cpu/simd.hpp"
#include "engine/error.hpp"

namespace mdcg {

// The waves at some atoms.
struct MultipoleWaves::Tile {
    std::int64_t begin = 0, end = 0;
    std::vector<double> tables[6];  // cosines, then sines of each direction

    WaveTile waves() const {
        return {{tables[0].data(), tables[1].data(), tables[2].data()},
                {tables[3].data(), tables[4].data(), tables[5].data()}};
    }
};

bool MultipoleWaves::update(const double* cell, const GaussianCharges& gaussians,
                            const double* chosen_in) {
    if (!waves_.update(cell, gaussians, chosen_in)) return false;
    vectors_.assign(waves_.weights().size(), {});
    squares_.assign(vectors_.size(), 0.0);
    longest_ = 0;
    for (const WaveColumn& column : waves_.columns())
        for (int i = 0; i < 2 * column.count; ++i) {
            const auto wave = size(2 * column.first + i);
            const int m = column.from + i / 2;
            const Vector3 k = waves_.vector(column.n1, column.n2, i % 2 == 0 ? m : -m);
            vectors_[wave] = k;
            squares_[wave] = k[0] * k[0] + k[1] * k[1] + k[2] * k[2];
            if (weight(wave) != 0) longest_ = std::max(longest_, std::sqrt(squares_[wave]));
        }
    return true;
}

// Calls body(tile, thread).
template <typename Body>
void MultipoleWaves::each_tile(const Atoms& atoms, const Body& body) const {
    std::vector<Tile> tiles(size(std::max(atoms.threads, 1)));
    FirstError error;
    share_in_turns(atoms.threads, ceil_div(atoms.nodes.end - atoms.nodes.begin, WAVE_TILE), 1,
                   [&](std::int64_t number, int thread) {
                       if (error.failed()) return;
                       try {
                           if (thread == 0) poll_interrupt();
                           Tile& tile = tiles[size(thread)];
                           fill(tile, atoms, number);
                           body(tile, thread);
                       } catch (...) {
                           error.keep();
                       }
                   });
    error.rethrow();
}

void MultipoleWaves::fill(Tile& tile, const Atoms& atoms, std::int64_t number) const {
    tile.begin = atoms.nodes.begin + number * WAVE_TILE;
    tile.end = std::min(atoms.nodes.end, tile.begin + WAVE_TILE);
    std::uint64_t phases[3][WAVE_TILE] = {};
    for (std::int64_t n = tile.begin; n < tile.end; ++n) {
        const auto found = waves_.phases(atoms.positions + 3 * n);
        for (std::size_t d = 0; d < 3; ++d) phases[d][n - tile.begin] = found[d];
    }
    for (std::size_t d = 0; d < 3; ++d) {
        const int count = waves_.bound(d) + 1;
        tile.tables[d].resize(size(count * WAVE_TILE));
        tile.tables[3 + d].resize(size(count * WAVE_TILE));
        simd<double>().wave_powers(phases[d], count, tile.tables[d].data(),
                                   tile.tables[3 + d].data());
    }
}

std::vector<Amplitudes> MultipoleWaves::amplitudes(const Atoms& atoms,
                                                   const std::vector<std::vector<Moment>>& moments,
                                                   bool dipoles, std::int64_t& total) const {
    std::vector<Amplitudes> found(moments.size(), Amplitudes(count()));
    double sum = 0;
    for (const std::vector<Moment>& channel : moments)
        for (std::int64_t n = atoms.nodes.begin; n < atoms.nodes.end; ++n) {
            const Moment& a = channel[size(n)];
            sum += std::abs(a[0]) +
                   std::max(1.0, longest_) * (std::abs(a[1]) + std::abs(a[2]) + std::abs(a[3]));
        }
    const bool large = !(sum < MAX_CHARGE);
    total = large ? static_cast<std::int64_t>(MAX_CHARGE) : std::llrint(std::ceil(sum));
    if (large) return found;
    const std::size_t parts = dipoles ? 4 : 1, items = 2 * count();  // of a part of a channel
    const auto num_columns = static_cast<std::int64_t>(waves_.columns().size());
    std::vector<std::vector<std::int64_t>> of_thread(size(std::max(atoms.threads, 1)));
    each_tile(atoms, [&](const Tile& tile, int thread) {
        std::vector<std::int64_t>& sums = of_thread[size(thread)];
        if (sums.empty()) sums.resize(items * parts * moments.size());
        for (std::size_t c = 0; c < moments.size(); ++c)
            for (std::size_t part = 0; part < parts; ++part) {
                alignas(64) double charges[WAVE_TILE] = {};
                for (std::int64_t n = tile.begin; n < tile.end; ++n)
                    charges[n - tile.begin] = moments[c][size(n)][part];
                simd<double>().wave_sums(tile.waves(), charges, waves_.columns().data(),
                                         num_columns, sums.data() + (c * parts + part) * items);
            }
    });
    const auto all = [&](std::size_t item) {
        std::int64_t of_all = 0;
        for (const std::vector<std::int64_t>& sums : of_thread)
            if (!sums.empty()) of_all += sums[item];
        return of_all;
    };
    for (std::size_t c = 0; c < moments.size(); ++c)
        for (std::size_t part = 0; part < parts; ++part)
            for (std::size_t i = 0; i < count() / 2; ++i) {
                std::int64_t s[4];
                for (std::size_t j = 0; j < 4; ++j)
                    s[j] = all((c * parts + part) * items + 4 * i + j);
                const std::complex<double> up(double(s[0] - s[1]), double(s[2] + s[3]));
                const std::complex<double> down(double(s[0] + s[1]), double(s[3] - s[2]));
                for (std::size_t sign = 0; sign < 2; ++sign) {
                    if (weight(2 * i + sign) == 0) continue;
                    const std::complex<double> value = (sign == 0 ? up : down) / CHARGE_UNITS;
                    const std::complex<double> factor(
                        part == 0 ? 1.0 : 0.0, part == 0 ? 0.0 : vectors_[2 * i + sign][part - 1]);
                    found[c][2 * i + sign] += factor * value;
                }
            }
    return found;
}

void MultipoleWaves::share(std::vector<Amplitudes>& amplitudes, std::int64_t total,
                           Communicator* communicator) {
    if (communicator != nullptr) {
        std::vector<std::int64_t> sums;
        for (const Amplitudes& channel : amplitudes)
            for (const std::complex<double>& value : channel) {
                sums.push_back(std::llrint(value.real() * CHARGE_UNITS));
                sums.push_back(std::llrint(value.imag() * CHARGE_UNITS));
            }
        sums.push_back(total);
        communicator->sum(sums.data(), static_cast<std::int64_t>(sums.size()));
        total = sums.back();
        const std::int64_t* next = sums.data();
        for (Amplitudes& channel : amplitudes)
            for (std::complex<double>& value : channel) {
                const auto real = static_cast<double>(*next++);
                value = {real / CHARGE_UNITS, static_cast<double>(*next++) / CHARGE_UNITS};
            }
    }
    if (!(static_cast<double>(total) < MAX_CHARGE)) charges_too_large();
}

void MultipoleWaves::potentials(const Atoms& atoms, const Amplitudes& weighted, bool second,
                                std::vector<Potential>& found) const {
    std::vector<double> factors;  // see WaveKernels::wave_fields
    for (std::size_t i = 0; i < count(); i += 2) {
        const std::complex<double> up = std::conj(weighted[i]), down = std::conj(weighted[i + 1]);
        const std::complex<double> both = up + down, less = up - down;
        factors.insert(factors.end(), {both.real(), both.imag(), less.real(), less.imag()});
    }
    found.resize(size(atoms.nodes.end));
    const auto num_columns = static_cast<std::int64_t>(waves_.columns().size());
    // columns of b are derivatives of the fractions of the cell times 2 pi
    const auto entry = [&](std::size_t d, std::size_t i) {
        return TWO_PI * waves_.inverse()[d][i];
    };
    each_tile(atoms, [&](const Tile& tile, int) {
        alignas(64) double real[WAVE_TILE], slopes[3 * WAVE_TILE], curvatures[6 * WAVE_TILE] = {};
        if (second)
            simd<double>().wave_curvatures(tile.waves(), waves_.columns().data(), num_columns,
                                           factors.data(), real, slopes, curvatures);
        else
            simd<double>().wave_fields(tile.waves(), waves_.columns().data(), num_columns,
                                       factors.data(), real, slopes);
        for (std::int64_t n = tile.begin; n < tile.end; ++n) {
            const auto a = size(n - tile.begin);
            Potential& at = found[size(n)];
            const Vector3 slope =
                waves_.vector(slopes[a], slopes[WAVE_TILE + a], slopes[2 * WAVE_TILE + a]);
            at[0] = real[a];
            for (std::size_t d = 0; d < 3; ++d) at[1 + d] = -slope[d];
            static constexpr std::size_t PART[3][3] = {{0, 3, 4}, {3, 1, 5}, {4, 5, 2}};
            static constexpr std::size_t ROW[6] = {0, 1, 2, 0, 0, 1},
                                         COLUMN[6] = {0, 1, 2, 1, 2, 2};
            for (std::size_t part = 0; part < 6; ++part) {
                double sum = 0;
                for (std::size_t i = 0; i < 3 && second; ++i)
                    for (std::size_t j = 0; j < 3; ++j)
                        sum += entry(ROW[part], i) * entry(COLUMN[part], j) *
                               curvatures[PART[i][j] * WAVE_TILE + a];
                at[4 + part] = -sum;
            }
        }
    });
}

}  // namespace mdcg
