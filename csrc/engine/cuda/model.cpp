#include "engine/cuda/model.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/integers.hpp"
#include "core/interrupt.hpp"
#include "core/threads.hpp"
#include "engine/backend/cpu/parallel.hpp"
#include "engine/cuda/devices.hpp"
#include "engine/cuda/executor.hpp"
#include "engine/cuda/list_copies.hpp"
#include "engine/neighbors/points.hpp"
#include "engine/package/dispersion.hpp"

namespace mdcg {

namespace {

// Nodes of a batch that are evaluated together: enough to fill any device.
constexpr std::int64_t MOST_BATCH_NODES = 32768;
// In systems of a batch with at most this many nodes all pairs are tested; larger ones have bins.
constexpr std::int64_t MOST_SEARCHED_NODES = 16384;

// In a step the host only copies rows of nodes. With fewer nodes, starting threads takes longer.
constexpr std::int64_t NODES_FOR_HOST_THREADS = 100000;

template <typename T>
class CudaModel : public Model {
public:
    CudaModel(std::shared_ptr<const Package> package, ModelInfo info, int device,
              KernelChoice choice)
        : Model(std::move(package), std::move(info), Stages::separate),
          ops_(program_.implement<CudaOp<T>>(*package_, mdcg::device_label(device))),
          device_(device) {
        if (!program_.kernel_refusal.empty() && choice.file.empty())
            throw EngineError(ErrorKind::unsupported,
                              package_->path() + ": " + program_.kernel_refusal +
                                  ", so it runs on CPUs only: use device \"cpu\"");
        capability_ = guarded(device, [&] { return mdcg::compute_capability(device); });
        name_ = guarded(device, [&] { return mdcg::device_name(device); });
        code_ = code_of(package_->kernels_of(package_), std::move(choice), capability_);
    }

    bool on_device() const override { return true; }
    bool makes_edges() const override { return true; }

    std::string device_label() const override {
        return mdcg::device_label(device_) + " (" + name_ + ", " + target_name(capability_) + ")";
    }
    std::string kernel_summary() const override {
        return executor_ != nullptr ? executor_->kernels().summary() : code_->outlook();
    }

    std::size_t total_memory() const override {
        return guarded(device_, [&] { return device_memory(device_).total; });
    }
    double bytes_needed(double num_local, double num_nodes, double num_edges) const override {
        // of DeviceEdges, StepResults, CudaCellList and gradients of edges in three parts
        constexpr double OF_NODE = 260, OF_EDGE = 64 + 12 * sizeof(T);
        const BufferPlan& plan = program_.gradient_plan;
        return sizeof(T) * (static_cast<double>(plan.total_width + plan.chunk_width) * num_nodes +
                            static_cast<double>(plan.local_width) * num_local) +
               OF_NODE * num_nodes + OF_EDGE * num_edges;
    }

    void check_peers(Communicator& communicator) const override {
        guarded(device_, [&] { PeerWindows(device_).test(communicator); });
    }

    void do_evaluate(const System& system, Communicator* communicator,
                     const Results& results) override {
        check_ghosts(system, communicator);
        // No second attempt where other ranks take part, or where the host's list is kept.
        timed(communicator == nullptr && !system.make_edges, [&] {
            if (!system.same_edges) executor_->forget_ghosts();
            if (program_.reads_points)
                run_points(system, communicator, results);
            else if (system.make_edges)
                run_copies(system, communicator, results);
            else
                run(system, communicator, results);
        });
    }

    bool do_evaluate_cell(const CellSystem& system, const Results& results) override {
        bool listed = false;
        if (system.num_nodes > 0)
            timed(true, [&] {
                listed =
                    program_.reads_points ? run_points(system, results) : run_cell(system, results);
            });
        return listed;
    }

    bool do_evaluate_batch(const Batch& batch, const Results& results) override {
        if (program_.reads_points || !program_.joins_systems) return false;
        const auto nodes = [&](std::int64_t first, std::int64_t end) {
            return batch.first_node[end] - batch.first_node[first];
        };
        const auto has_bins = [&](std::int64_t s) {
            return nodes(s, s + 1) > MOST_SEARCHED_NODES && !batch.on_device;
        };
        std::int64_t most = MOST_BATCH_NODES;
        for (std::int64_t first = 0, end = 0; first < batch.num_systems; first = end) {
            end = first + 1;
            if (has_bins(first)) {
                bool found = false;
                in_system(batch, first, [&] {
                    const int width = program_.descriptor_width;
                    found = do_evaluate_cell(batch.system(first),
                                             results_of(results, batch, first, width));
                });
                if (found) continue;
            } else {
                while (end < batch.num_systems && !has_bins(end) && nodes(first, end + 1) <= most)
                    ++end;
            }
            try {
                timed(true, [&] { run_batch({batch, first, end}, results); });
            } catch (const EngineError& error) {
                if (error.kind() != ErrorKind::memory || end == first + 1) throw;
                most = std::max<std::int64_t>(nodes(first, end) / 2, 1);
                end = first;
            }
        }
        return true;
    }

    void reload_tensors() override {
        if (executor_ == nullptr) {
            ops_.clear();  // they are made from the new tensors
            return;
        }
        timed(false, [&] { executor_->reload_tensors(); });
    }

    void do_release() override {
        forget(true);
        graph_ = Graph();
    }

protected:
    void add_to_report(nlohmann::json& out) const override {
        out["device"] = mdcg::device_label(device_);
        out["device_name"] = name_;
        out["precision"] = info_.double_precision ? "fp64" : "fp32";
        const bool given = listed_ && !own_listed_ && !copies_.taken();
        if (lists_built_ > 0 && !given) {
            out["neighbors_ms"] = neighbors_ms_;
            out["neighbor_lists_built"] = lists_built_;
        }
        if (executor_ == nullptr) return;
        out["kernels"] = executor_->kernels().report();
        out["replays"] = executor_->replays();
        out["exchanged_bytes"] = executor_->exchanged_bytes();
        out["exchange"] = executor_->from_device_to_device() ? "peer" : "host";
    }
    const std::vector<LayerTime>& times() const override {
        static const std::vector<LayerTime> none;
        return executor_ != nullptr ? executor_->times() : none;
    }
    std::size_t buffer_bytes() const override {
        return executor_ != nullptr ? executor_->bytes() : 0;
    }

private:
    // Calls `function` with the executor. `again`: tries once more after freeing everything if
    // memory runs out after replayed steps, or if more memory is held than allowed, because buffers
    // that have grown are larger than new ones.
    template <typename Function>
    void timed(bool again, const Function& function) {
        poll_interrupt();  // the device is idle, and nothing has been touched
        Clock whole;
        const bool held = again && executor_ != nullptr && executor_->bytes() > 0;
        bool retry = held && executor_->replays() > 0;
        if (process_ == 0) process_ = getpid();
        if (process_ != getpid())
            throw EngineError(ErrorKind::device,
                              "the model is on " + device_label() +
                                  ", which a forked process cannot use: open it after the fork, or "
                                  "use the start method 'spawn'");
        try {
            guarded(device_, [&] {
                if (executor_ == nullptr) {
                    // operations that are only half prepared are not used again
                    if (ops_.empty())
                        ops_ =
                            program_.implement<CudaOp<T>>(*package_, mdcg::device_label(device_));
                    auto made = std::make_unique<CudaExecutor<T>>(
                        program_, std::move(ops_), info_, CudaTarget{device_, capability_, code_});
                    made->prepare();
                    executor_ = std::move(made);
                }
                executor_->set_memory(memory_);
                function();
            });
            retry = false;
        } catch (const GeometryError&) {
            forget(false);
            throw;
        } catch (const EngineError& error) {
            const bool given =
                error.kind() == ErrorKind::argument || error.kind() == ErrorKind::numeric;
            forget(!given);
            if (dynamic_cast<const MemoryError*>(&error) != nullptr) retry = held;
            retry = retry && error.kind() == ErrorKind::memory;
            if (!retry) throw;
        } catch (...) {
            forget(true);
            throw;
        }
        if (retry) timed(false, function);
        total_ms_ = whole.lap();
    }

    void run(const System& system, Communicator* communicator, const Results& results) {
        Clock clock;
        const int threads =
            system.num_nodes < NODES_FOR_HOST_THREADS ? 1 : usable_threads(threads_);
        // a host that exchanges rows keeps its own numbers of nodes
        const bool changed =
            graph_.update_order(system, info_.r_max, info_.num_types(), communicator == nullptr);
        own_listed_ = false;
        copies_.forget();
        const bool fresh = changed || !listed_ || reversed_ != system.reversed;
        if (fresh) {
            executor_->set_graph(graph_, system.reversed);
            executor_->set_inner(communicator != nullptr ? system.num_inner : 0);
        }
        reversed_ = system.reversed;
        if (fresh || !system.same_shifts) executor_->set_shifts(graph_, system, fresh);
        listed_ = true;
        graph_.gather_positions(system, executor_->positions(), threads);
        graph_ms_ = clock.lap();
        run_layers(communicator, results, system, threads);
    }

    // Returns false, without evaluating, if the device makes no list of such a system.
    bool run_cell(const CellSystem& system, const Results& results) {
        Clock clock;
        const std::int64_t nodes = system.num_nodes;
        const int threads = nodes < NODES_FOR_HOST_THREADS ? 1 : usable_threads(threads_);
        if (watch_ == nullptr || watch_->skin() != system.skin)
            watch_ = std::make_unique<VerletSkin>(info_.r_max, system.skin);
        const ListChange change =
            watch_->needs_rebuild(nodes, system.positions, system.cell, system.periodic, threads);
        if (change == ListChange::edges || !own_listed_ || graph_.num_local != system.num_local() ||
            !std::equal(types_.begin(), types_.end(), system.types)) {
            check_types(system.types, nodes, info_.num_types());
            const ListPoints points{nodes, system.positions, system.types, system.num_local(),
                                    nodes};
            copies_.forget();
            if (!executor_->make_list(*watch_, points, graph_)) {
                watch_->reset();
                return false;
            }
            types_.assign(system.types, system.types + nodes);
            watch_->keep(system.positions);
            listed_ = false;
            own_listed_ = true;
            ++lists_built_;
            neighbors_ms_ = clock.lap();
        } else {
            if (change == ListChange::shifts) executor_->set_cell(*watch_);
            double* const staged = executor_->positions();
            share(threads, 3 * nodes,
                  [&](std::int64_t i, int) { staged[i] = system.positions[i]; });
        }
        graph_ms_ = clock.lap();
        run_layers(nullptr, results, system, threads);
        return true;
    }

    // The same with ghosts or copies of nodes. The host says when the list is to be made again.
    void run_copies(const System& system, Communicator* communicator, const Results& results) {
        Clock clock;
        const std::int64_t nodes = system.num_nodes;
        const int threads = nodes < NODES_FOR_HOST_THREADS ? 1 : usable_threads(threads_);
        check_types(system.types, nodes, info_.num_types());
        const bool fresh = copies_.take(system, info_.r_max) ||
                           !std::equal(types_.begin(), types_.end(), system.types);
        if (fresh) {
            listed_ = own_listed_ = false;
            types_.assign(system.types, system.types + nodes);
            executor_->make_list(copies_.watch(), copies_.points(system), graph_);
            executor_->set_inner(system.num_inner);
            ++lists_built_;
            neighbors_ms_ = clock.lap();
        }
        executor_->set_shifts(graph_, system, fresh);
        graph_.gather_positions(system, executor_->positions(), threads);
        graph_ms_ = clock.lap();
        run_layers(communicator, results, system, threads);
    }

    void run_batch(const BatchPart& part, const Results& results) {
        Clock clock;
        listed_ = own_listed_ = false;
        copies_.forget();
        executor_->make_list(part, info_.r_max, graph_);
        ++lists_built_;
        graph_ms_ = neighbors_ms_ = clock.lap();
        typename CudaExecutor<T>::Wanted wanted;  // no forces: the host reads only sums
        wanted.virial = results.virial != nullptr || results.virials != nullptr;
        wanted.gradient = wanted.virial || results.forces != nullptr;
        wanted.descriptors = results.descriptors;
        wanted.inputs = part.batch.inputs;
        wanted.batch = &part;
        executor_->run(graph_, nullptr, wanted);
        layers_ms_ = clock.lap();
        executor_->store(part, results);
        forces_ms_ = clock.lap();
    }

    // For programs that read distant points: the host sorts the points, and the device moves them
    // with their nodes as long as nodes are near the positions at which points were sorted.
    bool run_points(const CellSystem& cell, const Results& results) {
        if (watch_ == nullptr || watch_->skin() != cell.skin)
            watch_ = std::make_unique<VerletSkin>(info_.r_max, cell.skin);
        System system;
        system.num_local = system.num_nodes = cell.num_nodes;
        system.positions = cell.positions;
        system.types = cell.types;
        system.energy_weights = cell.energy_weights;
        // a change of the cell also moves images, which the skin does not cover
        const ListChange change =
            watch_->needs_rebuild(cell.num_nodes, cell.positions, cell.cell, cell.periodic);
        const bool fresh = change != ListChange::none || !own_listed_;
        place_points(system, fresh, cell.skin, [&](double reach) { points_.update(cell, reach); });
        if (fresh) watch_->keep(cell.positions);
        own_listed_ = true;
        run_layers(nullptr, results, cell, 1);
        return true;
    }

    void run_points(const System& system, Communicator* communicator, const Results& results) {
        if (!system.make_edges && system.num_local > 0) refuse_edges();
        const auto shifts = size(3 * system.num_images);
        const bool moved = images_.size() != shifts ||
                           !std::equal(images_.begin(), images_.end(), system.image_shifts);
        place_points(system, !system.same_edges || moved, system.skin,
                     [&](double reach) { points_.update(system, reach); });
        images_.assign(system.image_shifts, system.image_shifts + shifts);
        own_listed_ = false;
        run_layers(communicator, results, system, 1);
    }

    template <typename FindPoints>
    void place_points(System system, bool fresh, double skin, const FindPoints& find_points) {
        Clock clock;
        const std::int64_t nodes = system.num_nodes;
        fresh = fresh || !listed_ || graph_.num_nodes != nodes ||
                graph_.num_local != system.num_local ||
                !std::equal(types_.begin(), types_.end(), system.types);
        if (fresh) {
            listed_ = false;
            const double* const positions = system.positions;
            System alone;  // without edges
            alone.num_local = system.num_local;
            alone.num_nodes = nodes;
            alone.positions = positions;
            alone.types = system.types;
            graph_.update_order(alone, info_.r_max, info_.num_types(), false);
            executor_->set_graph(graph_, false);
            executor_->set_shifts(graph_, alone, true);
            find_points(info_.r_max + skin);
            executor_->set_points(points_, positions, 0.5 * skin + 1e-6);
            types_.assign(system.types, system.types + nodes);
            listed_ = true;
            ++lists_built_;
            neighbors_ms_ = clock.lap();
        }
        graph_.gather_positions(system, executor_->positions(), 1);
        graph_ms_ = clock.lap();
    }

    template <typename AnySystem>
    void run_layers(Communicator* communicator, const Results& results, const AnySystem& system,
                    int threads) {
        Clock clock;
        typename CudaExecutor<T>::Wanted wanted;
        wanted.forces = results.forces != nullptr;
        wanted.virial = results.virial != nullptr;
        wanted.virials = results.virials != nullptr;
        wanted.gradient = wanted.forces || wanted.virial || wanted.virials;
        wanted.descriptors = results.descriptors;
        wanted.energy_weights = system.energy_weights;
        wanted.cell = system.cell;
        wanted.periodic = system.periodic;
        wanted.inputs = system.inputs;
        wanted.waves_cell = system.waves_cell;
        executor_->run(graph_, communicator, wanted);
        layers_ms_ = clock.lap();
        store(results, threads);
        forces_ms_ = clock.lap();
    }

    // Stores results in the order of the system.
    void store(const Results& results, int threads) const {
        const CudaExecutor<T>& found = *executor_;
        check_energy(found.energy());
        if (results.energy != nullptr) *results.energy = found.energy();
        // graph_.node is a permutation; if it is sorted, rows keep their places
        const bool given =
            found.in_given_order() || std::is_sorted(graph_.node.begin(), graph_.node.end());
        const auto scatter = [&](const double* from, std::int64_t count, int width, double* to) {
            if (to == nullptr) return;
            if (given && threads == 1) {
                std::copy_n(from, count * width, to);
                return;
            }
            share(threads, count, [&](std::int64_t n, int) {
                const std::int64_t row = given ? n : graph_.node[size(n)];
                std::copy_n(from + width * n, width, to + width * row);
            });
        };
        scatter(found.energies(), graph_.num_local, 1, results.energies);
        scatter(found.forces(), graph_.num_nodes, 3, results.forces);
        scatter(found.virials(), graph_.num_nodes, 9, results.virials);
        if (results.virial != nullptr) std::copy_n(found.virial().begin(), 9, results.virial);
        check_finite(results);
    }

    // After an error the list is dropped. `all`: the executor too, because the error was not in the
    // input: layers may be half prepared, or memory may have run out.
    void forget(bool all) {
        listed_ = own_listed_ = false;
        copies_.forget();
        if (all) executor_.reset();
    }

    std::vector<std::unique_ptr<CudaOp<T>>> ops_;  // until an executor takes them
    int device_, capability_ = 0;
    pid_t process_ = 0;  // the process of the first evaluation
    std::string name_;
    CudaCodePtr code_;
    std::unique_ptr<CudaExecutor<T>> executor_;
    bool listed_ = false;    // graph_ is on the device
    bool reversed_ = false;  // System::reversed of that graph
    // For lists that the device makes.
    std::unique_ptr<VerletSkin> watch_;
    std::vector<std::int32_t> types_;  // [num_nodes] of the last list
    bool own_listed_ = false;          // a list of run_cell is on the device
    ListCopies copies_;                // for lists of ghosts and copies
    Points points_;                    // for programs that read points
    std::vector<double> images_;       // image shifts that points_ were made with
    std::int64_t lists_built_ = 0;
    double neighbors_ms_ = 0;
};

template <typename T>
std::vector<CudaKernelSource> list_kernel_sources(const Package& package, const ModelInfo& info,
                                                  const CudaTarget& place) {
    const Program program(package, info, Stages::separate);
    CudaExecutor<T> executor(program, program.implement<CudaOp<T>>(package, "cuda"), info, place);
    executor.ask_for_all_kernels();
    return executor.kernels().texts();
}

}  // namespace

std::vector<CudaKernelSource> cuda_kernel_sources(std::shared_ptr<const Package> package,
                                                  int capability, const std::string& passes) {
    std::vector<CudaKernelSource> found;
    const CudaTarget place{NO_DEVICE, capability, code_of(KernelFile(package, passes))};
    for (const auto& network : networks_of(package)) {
        const ModelInfo info = read_model_info(*network);
        const auto sources = info.double_precision
                                 ? list_kernel_sources<double>(*network, info, place)
                                 : list_kernel_sources<float>(*network, info, place);
        found.insert(found.end(), sources.begin(), sources.end());
    }
    return found;
}

std::unique_ptr<Model> open_cuda_model(std::shared_ptr<const Package> package, ModelInfo info,
                                       int device, KernelChoice choice) {
    if (info.double_precision)
        return std::make_unique<CudaModel<double>>(std::move(package), std::move(info), device,
                                                   std::move(choice));
    return std::make_unique<CudaModel<float>>(std::move(package), std::move(info), device,
                                              std::move(choice));
}

}  // namespace mdcg
