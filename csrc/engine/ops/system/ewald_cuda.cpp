// Long-range energies on devices.
#include <algorithm>
#include <memory>
#include <vector>

#include "core/integers.hpp"
#include "engine/communicator.hpp"
#include "engine/cuda/batch.hpp"
#include "engine/cuda/cuda_op.hpp"
#include "engine/edges/layout.hpp"
#include "engine/ops/system/ewald.hpp"
#include "engine/ops/system/particle_mesh_cuda.hpp"
#include "kernels/ewald.hpp"

namespace mdcg {

namespace {

template <typename T>
class CudaEwald : public CudaOp<T> {
public:
    explicit CudaEwald(const EwaldSpec& spec) : spec_(spec) {}

    void prepare(CudaKernels& kernels, const DeviceStream&) override {
        constexpr const char* TEXT = "ewald.cuh";
        powers_ = kernels.fixed(TEXT, "wave_powers");
        sums_ = kernels.fixed(TEXT, "wave_sums");
        factors_ = kernels.fixed(TEXT, "wave_factors");
        fields_ = kernels.fixed(TEXT, "wave_fields");
        add_fields_ = kernels.fixed(TEXT, "add_fields");
        open_charges_ = kernels.fixed(TEXT, "open_charges");
        mesh_.prepare(kernels);
        multiprocessors_ = kernels.multiprocessors();
        memory_ = std::make_unique<DeviceMemory>(kernels.device());
        shared_sums_ = std::make_unique<PinnedMemory>(kernels.device());
    }
    // Steps of cells that change a little take their waves later, while the device is busy.
    void reserve(const CudaWorker<T>& worker) override {
        bool changed = find_systems(worker);
        for (const System& system : systems_) {
            const double* chosen_in =
                worker.waves_cell != nullptr ? worker.waves_cell : system.cell;
            changed = changed ||
                      (system.periodic && !system.waves.has_bounds_of(chosen_in, spec_.charges));
        }
        if (changed) take_waves(worker);
    }
    std::size_t bytes() const override {
        return memory_ ? memory_->bytes() + columns_.bytes() + weights_.bytes() + mesh_.bytes() : 0;
    }
    void forward(CudaWorker<T>& worker, Range) const override {
        if (!worker.with_gradient) run(worker);
    }
    void backward(CudaWorker<T>& worker, Range) const override { run(worker); }

private:
    static constexpr int THREADS = 128;

    // Takes the waves of all systems. These share the memory of their sums, one after the other.
    void take_waves(const CudaWorker<T>& worker) const {
        std::size_t needed = 0, tables = 0;
        std::int64_t columns = 0, weights = 0;
        for (System& system : systems_) {
            if (!system.periodic) continue;
            const bool updated = system.waves.update(system.cell, spec_.charges, worker.waves_cell);
            stale_ = stale_ || updated || system.first_column != columns ||
                     system.first_weight != weights;
            system.first_column = columns;
            system.first_weight = weights;
            columns += static_cast<std::int64_t>(system.waves.columns().size());
            weights += static_cast<std::int64_t>(system.waves.weights().size());
            system.uses_mesh = ParticleMesh::is_worthwhile(system.waves, MESH_PAIRS_CUDA);
            if (system.uses_mesh) {
                mesh_.update(system.waves);
                tables = std::max(tables, mesh_.needed_bytes());
            }
            EwaldArguments<T> a{};
            a.num_atoms = system.count;
            needed = std::max(needed, lay_out(system, a, nullptr));
        }
        const auto lacking = [](std::size_t wanted, std::size_t held) {
            return wanted - std::min(wanted, held);
        };
        const std::size_t more = lacking(needed, memory_->bytes()) +
                                 lacking(size(columns) * sizeof(WaveColumn), columns_.bytes()) +
                                 lacking(size(weights) * sizeof(double), weights_.bytes()) +
                                 lacking(tables, mesh_.bytes());
        if (more > 0) memory_->grow(needed, worker.edges->before_growth(more));
        if (!stale_) return;
        std::vector<WaveColumn> all_columns;
        std::vector<double> all_weights;
        for (const System& system : systems_) {
            if (!system.periodic) continue;
            const Waves& waves = system.waves;
            all_columns.insert(all_columns.end(), waves.columns().begin(), waves.columns().end());
            all_weights.insert(all_weights.end(), waves.weights().begin(), waves.weights().end());
        }
        columns_.upload(all_columns, *worker.stream);
        weights_.upload(all_weights, *worker.stream);
        stale_ = false;
    }

    // Nodes of the worker that do not interact with the others.
    struct System {
        std::int64_t first = 0, count = 0;
        const double* cell = nullptr;
        bool periodic = false, uses_mesh = false;
        Waves waves;                                      // kept while the cell is the same
        std::int64_t first_column = 0, first_weight = 0;  // on the device
    };

    // Returns whether the numbers of systems or of their nodes have changed.
    bool find_systems(const CudaWorker<T>& worker) {
        const BatchPart* const batch = worker.batch;
        const std::int64_t count = batch != nullptr ? batch->end - batch->first : 1;
        bool changed = systems_.size() != size(count);
        stale_ = stale_ || changed;
        systems_.resize(size(count));
        for (std::int64_t s = 0; s < count; ++s) {
            std::int64_t first = 0, nodes = worker.edges->num_local;
            const double* cell = worker.cell;
            const bool* periodic = worker.periodic;
            if (batch != nullptr) {
                const CellSystem given = batch->batch.system(batch->first + s);
                first = batch->batch.first_node[batch->first + s] - batch->first_node();
                nodes = given.num_nodes;
                cell = given.cell;
                periodic = given.periodic;
            }
            System& system = systems_[size(s)];
            changed = changed || system.count != nodes;
            system.first = first;
            system.count = nodes;
            system.cell = cell;
            system.periodic = spec_.is_periodic(cell, periodic);
        }
        return changed;
    }

    void run(CudaWorker<T>& worker) const {
        take_waves(worker);
        for (const System& system : systems_) run(worker, system);
    }

    void run(CudaWorker<T>& worker, const System& system) const {
        EwaldArguments<T> a{};
        const std::int64_t first = system.first;
        a.num_atoms = system.count;
        a.positions = worker.edges->positions + 3 * first;
        a.x = worker.value(spec_.x, first);
        a.width = spec_.x.rows.width;
        a.add = spec_.x.accumulate;
        a.energies = worker.energies + first;
        a.sigma = spec_.charges.sigma;
        a.failures = worker.failures + 1;
        if (worker.with_gradient) {
            a.gradient = worker.wanted_gradient(spec_.x, first);
            a.forces = worker.forces + 3 * first;
            a.virials = worker.virials + 6 * first;
        }
        if (system.periodic) {
            a.own = spec_.own_removed ? -2 * spec_.own : 0;
            return sum_waves(worker, system, a);
        }
        spec_.expect_one_process(worker.communicator, a.num_atoms);
        a.own = spec_.own_removed ? 0 : 2 * spec_.own;
        a.unit = spec_.charges.factor / TWO_PI;
        open_charges_.cover(*worker.stream, 32 * a.num_atoms, THREADS, a);
    }

    void sum_waves(CudaWorker<T>& worker, const System& system, EwaldArguments<T>& a) const {
        const DeviceStream& stream = *worker.stream;
        if (system.uses_mesh) {
            mesh_.update(system.waves);
            mesh_.upload(stream);
        }
        lay_out(system, a, memory_->template as<char>());
        if (system.uses_mesh)
            mesh_.find_sums(a, stream);
        else
            find_sums(a, stream);
        share_sums(worker, a);
        // also without columns: it checks the total of the charges
        const std::int64_t blocks = ceil_div(a.num_columns, FACTOR_COLUMNS);
        factors_.launch(stream, std::max<std::int64_t>(blocks, 1), 32 * FACTOR_COLUMNS, a);
        if (system.uses_mesh)
            mesh_.find_fields(a, stream);
        else
            fields_.launch(stream, a.padded / WAVE_ATOMS * a.num_parts, WAVE_THREADS, a);
        add_fields_.cover(stream, a.num_atoms, THREADS, a);
    }

    void find_sums(EwaldArguments<T>& a, const DeviceStream& stream) const {
        clear_on_device(a.sums, 8 * size(a.num_sums + 1), stream);
        powers_.cover(stream, 3 * std::int64_t(a.padded), 2 * THREADS, a);
        const std::int64_t tiles = ceil_div(a.num_columns, SUM_COLUMNS) * a.sum_tiles;
        // Enough blocks for the device, of at most 32 tiles of atoms. Results do not depend on
        // them.
        const std::int64_t atom_tiles = a.padded / WAVE_ATOMS;
        a.num_splits = std::clamp<std::int64_t>(
            std::max(8 * multiprocessors_ / std::max<std::int64_t>(tiles, 1), atom_tiles / 32), 1,
            std::max<std::int64_t>(atom_tiles, 1));
        sums_.launch(stream, tiles * a.num_splits, WAVE_THREADS, a);
    }

    // Fills in what depends on the waves, with arrays in `memory`. Returns the bytes that they
    // take.
    std::size_t lay_out(const System& system, EwaldArguments<T>& a, char* memory) const {
        const Waves& waves = system.waves;
        for (std::size_t i = 0; i < 9; ++i) a.inverse[i] = waves.inverse()[i / 3][i % 3];
        for (std::size_t d = 0; d < 3; ++d) a.bounds[d] = waves.bound(d);
        const std::int64_t tiles = ceil_div(a.num_atoms, WAVE_ATOMS), padded = tiles * WAVE_ATOMS;
        a.padded = narrow(padded);
        a.columns = columns_.data() + system.first_column;
        a.weights = weights_.data() + system.first_weight;
        a.num_columns = static_cast<std::int64_t>(waves.columns().size());
        a.num_sums = 4 * waves.num_pairs();
        a.sum_tiles = a.bounds[2] / SUM_WAVES + 1;
        // a constant, because the order of these sums must not depend on the device
        constexpr std::int64_t FIELD_BLOCKS = 2048;
        const std::int64_t column_tiles = ceil_div(a.num_columns, FIELD_COLUMNS);
        a.num_parts = std::clamp<std::int64_t>(FIELD_BLOCKS / std::max<std::int64_t>(tiles, 1), 1,
                                               std::max<std::int64_t>(column_tiles, 1));
        if (system.uses_mesh) a.num_parts = 1;
        Layout parts(memory, DEVICE_ALIGNMENT);
        if (system.uses_mesh) {
            mesh_.lay_out(parts);
        } else {
            parts.take(a.charges, padded);
            for (std::size_t d = 0; d < 3; ++d)
                parts.take(a.powers[d], 2 * (a.bounds[d] + 1) * padded);
        }
        parts.take(a.sums, a.num_sums + 1);
        parts.take(a.own_sums, a.num_sums);
        parts.take(a.factors, a.num_sums);
        parts.take(a.fields, 4 * a.num_parts * padded);
        parts.take(a.virial_sums, 6 * (ceil_div(a.num_columns, FACTOR_COLUMNS) + 1));
        return parts.bytes();
    }

    // Adds the sums of all processes on the host.
    void share_sums(const CudaWorker<T>& worker, EwaldArguments<T>& a) const {
        if (worker.communicator == nullptr) {
            a.own_sums = a.sums;
            return;
        }
        const std::size_t bytes = 8 * size(a.num_sums + 1);
        copy_on_device(a.own_sums, a.sums, 8 * size(a.num_sums), *worker.stream);
        shared_sums_->grow(bytes);
        auto* const sums = shared_sums_->template as<std::int64_t>();
        copy_to_host(sums, a.sums, bytes, *worker.stream);
        worker.stream->synchronize();
        worker.communicator->sum(sums, a.num_sums + 1);
        copy_to_device(a.sums, sums, bytes, *worker.stream);
    }

    const EwaldSpec& spec_;
    CudaFunction powers_, sums_, factors_, fields_, add_fields_, open_charges_;
    int multiprocessors_ = 1;
    // Steps are not captured here, so memory may grow in every step.
    mutable std::vector<System> systems_;
    mutable bool stale_ = true;  // columns_ and weights_ are not those of the systems
    mutable DeviceArray<WaveColumn> columns_;
    mutable DeviceArray<double> weights_;
    mutable CudaParticleMesh<T> mesh_;
    std::unique_ptr<DeviceMemory> memory_;
    std::unique_ptr<PinnedMemory> shared_sums_;
};

const RegisterOp<EwaldSpec, CudaEwald> registered{"ewald"};

}  // namespace

}  // namespace mdcg
