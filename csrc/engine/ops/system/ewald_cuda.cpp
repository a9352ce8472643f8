// Long-range energies on devices.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "core/integers.hpp"
#include "core/text.hpp"
#include "engine/communicator.hpp"
#include "engine/cuda/cuda_op.hpp"
#include "engine/error.hpp"
#include "engine/ops/system/ewald.hpp"
#include "kernels/ewald.hpp"

namespace mdcg {

namespace {

// Shared memory for the tables of a tile of atoms, which every device has.
constexpr int TABLE_BYTES = 88 * 1024;
// Blocks that fill any device. They divide sums the same way on all devices.
constexpr std::int64_t ENOUGH_BLOCKS = 1024, MOST_SPLITS = 32;

template <typename T>
class CudaEwald : public CudaOp<T> {
public:
    explicit CudaEwald(const EwaldSpec& spec) : spec_(spec) {}

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        const auto kernel = [&](const char* name, int shared_bytes = 0) {
            return kernels.fixed("ewald.cuh", name, "", shared_bytes);
        };
        sums_ = kernel("ewald_sums", TABLE_BYTES);
        fields_ = kernel("ewald_fields", TABLE_BYTES);
        pairs_ = kernel("ewald_pairs", TABLE_BYTES);
        factors_ = kernel("ewald_factors");
        energies_ = kernel("ewald_energies");
        gradients_ = kernel("ewald_gradients");
        results_ = kernel("ewald_results");
        memory_ = std::make_unique<Memory>(stream.device());
    }

    bool set_cell(const double* cell, const bool* periodic, const DeviceStream& stream) override {
        const bool was_periodic = periodic_, first = size_.cell == nullptr;
        periodic_ = spec_.is_periodic(cell, periodic);
        const bool changed = periodic_ && waves_.update(cell, spec_.charges, THREAD_PAIRS);
        if (!first && !changed && periodic_ == was_periodic) return false;
        const EwaldArguments<T> before = size_;
        if (periodic_)
            upload_waves(stream);
        else
            size_.num_columns = size_.num_pairs = size_.num_threads = 0;
        upload_cell(stream);
        return periodic_ != was_periodic || before.num_pairs != size_.num_pairs ||
               before.num_columns != size_.num_columns || before.pairs != size_.pairs ||
               before.columns != size_.columns || before.weights != size_.weights ||
               before.sums != size_.sums || before.virials != size_.virials ||
               !std::equal(before.bounds, before.bounds + 3, size_.bounds) || first;
    }

    void on_new_list(const DeviceEdges& graph, const DeviceStream&) override {
        memory_->potentials.grow(8 * size(graph.num_local) + 8);
        memory_->forces.grow(24 * size(graph.num_local) + 8);
        reserve_virials(tiles(graph.num_local));
    }
    std::size_t scratch_bytes(const DeviceEdges& graph) const override {
        return size(32 * splits(graph.num_local) * std::max<std::int64_t>(graph.num_local, 1));
    }

    // The forward pass computes forces and gradients, too, because energies are summed before the
    // backward pass.
    void forward(CudaWorker<T>& worker, Range) const override {
        EwaldArguments<T> a = arguments(worker);
        const DeviceStream& stream = *worker.stream;
        if (periodic_) {
            find_sums(worker, a);
            factors_.launch(stream, ceil_div(a.num_threads, EWALD_THREADS), EWALD_THREADS, a);
            fields_.launch(stream, tiles(a.num_local) * a.splits, EWALD_THREADS, a, table_bytes());
        } else {
            spec_.expect_one_process(worker.communicator, a.num_local);
            a.splits = 1;
            pairs_.launch(stream, tiles(a.num_local), EWALD_THREADS, a, table_bytes());
        }
        energies_.cover(stream, a.num_local, EWALD_THREADS, a);
    }
    void backward(CudaWorker<T>& worker, Range) const override {
        if (!spec_.x.needs_gradient) return;
        const EwaldArguments<T> a = arguments(worker);
        gradients_.cover(*worker.stream, a.num_local, EWALD_THREADS, a);
    }
    void add_results(const CudaWorker<T>& worker, double* forces, double* virials) const override {
        EwaldArguments<T> a = arguments(worker);
        a.forces = forces;
        a.node_virials = virials;
        results_.cover(*worker.stream, std::max<std::int64_t>(3 * a.num_local, 9), EWALD_THREADS,
                       a);
    }

private:
    struct Memory {
        explicit Memory(int device)
            : cell(device),
              pairs(device),
              columns(device),
              weights(device),
              sums(device),
              own_sums(device),
              factors(device),
              virials(device),
              potentials(device),
              forces(device),
              host(device) {}
        DeviceMemory cell, pairs, columns, weights, sums, own_sums, factors, virials, potentials,
            forces;
        PinnedMemory host;
    };

    static std::int64_t tiles(std::int64_t nodes) { return ceil_div(nodes, EWALD_TILE); }
    static std::int64_t splits(std::int64_t nodes) {
        const std::int64_t blocks = std::max<std::int64_t>(tiles(nodes), 1);
        return std::clamp<std::int64_t>(ENOUGH_BLOCKS / blocks, 1, MOST_SPLITS);
    }
    int table_bytes() const {
        int rows = THREAD_PAIRS + 3;
        for (const int bound : size_.bounds) rows += bound;
        return std::max(16 * rows * EWALD_ROW, 8 * 4 * EWALD_THREADS);
    }
    std::size_t sum_bytes() const { return 8 * size(4 * size_.num_pairs + 1); }

    template <typename Item>
    static const Item* upload(const std::vector<Item>& items, DeviceMemory& memory,
                              const DeviceStream& stream) {
        memory.grow(items.size() * sizeof(Item) + 1);
        memory.upload(items.data(), items.size() * sizeof(Item), stream);
        return memory.as<const Item>();
    }
    void reserve_virials(std::int64_t count) {
        memory_->virials.grow(72 * size(std::max<std::int64_t>(count, 1)));
        size_.virials = memory_->virials.template as<double>();
    }

    void upload_waves(const DeviceStream& stream) {
        for (std::size_t d = 0; d < 3; ++d) size_.bounds[d] = waves_.bound(d);
        if (table_bytes() > TABLE_BYTES)
            throw EngineError(ErrorKind::unsupported,
                              "the long-range sum on a device goes over cells whose edges are "
                              "together at most " +
                                  number_text(160 * spec_.charges.spacing) +
                                  " Å long: use a smaller cell, or device cpu");
        std::vector<WavePairs> pairs;
        for (const WaveColumn& column : waves_.columns()) {
            const int step = static_cast<int>(ceil_div(column.count, THREAD_PAIRS));
            for (int r = 0; r < step; ++r)
                pairs.push_back({column.n1, column.n2, column.from + r, step, column.first + r});
        }
        size_.num_pairs = waves_.num_pairs();
        size_.num_columns = static_cast<Long>(waves_.columns().size());
        size_.num_threads = static_cast<Long>(pairs.size());
        size_.pairs = upload(pairs, memory_->pairs, stream);
        size_.columns = upload(waves_.columns(), memory_->columns, stream);
        size_.weights = upload(waves_.weights(), memory_->weights, stream);
        stream.synchronize();
        memory_->sums.grow(sum_bytes());
        memory_->own_sums.grow(sum_bytes());
        memory_->factors.grow(sum_bytes());
        memory_->host.grow(sum_bytes());
        size_.sums = memory_->sums.template as<Long>();
        size_.factors = memory_->factors.template as<double>();
        reserve_virials(ceil_div(size_.num_threads, EWALD_THREADS));
    }

    void upload_cell(const DeviceStream& stream) {
        EwaldCell cell{};
        const double unit = spec_.charges.factor / TWO_PI;
        cell.scale = periodic_ ? 2 : unit;
        if (periodic_ && spec_.own_removed) cell.own = -2 * spec_.own;
        if (!periodic_ && !spec_.own_removed) cell.own = 2 * spec_.own;
        for (std::size_t i = 0; i < 3; ++i)
            for (std::size_t d = 0; d < 3; ++d) {
                if (periodic_) cell.inverse[3 * i + d] = waves_.inverse()[i][d];
                cell.field[3 * i + d] =
                    periodic_ ? 2 * TWO_PI * waves_.inverse()[d][i] : (i == d ? unit : 0.0);
            }
        size_.cell = upload(std::vector<EwaldCell>{cell}, memory_->cell, stream);
        stream.synchronize();
    }

    EwaldArguments<T> arguments(const CudaWorker<T>& worker) const {
        EwaldArguments<T> a = size_;
        a.num_local = worker.edges->num_local;
        a.positions = worker.edges->positions;
        a.charges = worker.value(spec_.x);
        a.width = spec_.x.rows.width;
        a.add = spec_.x.accumulate ? 1 : 0;
        a.gradient = worker.wanted_gradient(spec_.x);
        a.own_sums = worker.communicator != nullptr ? memory_->own_sums.template as<const Long>()
                                                    : size_.sums;
        a.sigma = spec_.charges.sigma;
        a.splits = narrow(splits(a.num_local));
        a.parts = reinterpret_cast<double*>(worker.free_memory);
        a.potentials = memory_->potentials.template as<double>();
        a.own_forces = memory_->forces.template as<double>();
        a.energies = worker.energies;
        a.num_virials = periodic_ ? ceil_div(a.num_threads, EWALD_THREADS) : tiles(a.num_local);
        const std::int64_t blocks =
            std::max<std::int64_t>(ceil_div(a.num_threads, EWALD_THREADS), 1);
        a.chunks = narrow(std::clamp<std::int64_t>(ENOUGH_BLOCKS / blocks, 1,
                                                   std::max<std::int64_t>(tiles(a.num_local), 1)));
        return a;
    }

    // Sums over the atoms of this process, and then of all processes.
    void find_sums(const CudaWorker<T>& worker, const EwaldArguments<T>& a) const {
        const DeviceStream& stream = *worker.stream;
        clear_on_device(a.sums, sum_bytes(), stream);
        if (a.num_local > 0)
            sums_.launch(stream, ceil_div(a.num_threads, EWALD_THREADS) * a.chunks, EWALD_THREADS,
                         a, table_bytes());
        if (worker.communicator == nullptr) return;
        auto* const host = memory_->host.template as<std::int64_t>();
        copy_on_device(memory_->own_sums.data(), a.sums, sum_bytes(), stream);
        copy_to_host(host, a.sums, sum_bytes(), stream);
        stream.synchronize();
        worker.communicator->sum(host, 4 * a.num_pairs + 1);
        copy_to_device(a.sums, host, sum_bytes(), stream);
    }

    const EwaldSpec& spec_;
    CudaFunction sums_, fields_, pairs_, factors_, energies_, gradients_, results_;
    Waves waves_;
    bool periodic_ = false;
    EwaldArguments<T> size_{};  // what depends on the cell
    std::unique_ptr<Memory> memory_;
};

const RegisterOp<EwaldSpec, CudaEwald> registered{"ewald"};

}  // namespace

}  // namespace mdcg
