#include "engine/cuda/model.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/threads.hpp"
#include "engine/cuda/executor.hpp"
#include "engine/parallel.hpp"

namespace mdcg {

namespace {

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

// The host's part of a step is rows of nodes, in and out: with fewer, threads take longer to start.
constexpr std::int64_t NODES_FOR_THREADS = 100000;

std::string name_of(int device) { return "cuda:" + std::to_string(device); }

// What the driver says, as one sentence of the engine.
[[noreturn]] void rethrow(const CudaError& error, int device) {
    constexpr int NO_DEVICE = 100, FORKED = 3;
    if (error.code() == CUDA_OUT_OF_MEMORY) throw EngineError(ErrorKind::memory, error.what());
    std::string what = "device " + name_of(device) + " cannot be used (" + error.what() + ")";
    if (error.code() == NO_DEVICE)
        what += ": use device cpu";
    else if (error.code() == FORKED)
        what += ": a process that was forked from one that used it needs the start method 'spawn'";
    else if (error.code() >= 700 || error.code() == 214)  // it has lost its context
        what += ": start the process again";
    throw EngineError(ErrorKind::device, what);
}

template <typename Function>
auto guarded(int device, const Function& function) {
    try {
        return function();
    } catch (const CudaError& error) {
        rethrow(error, device);
    }
}

template <typename T>
class CudaModel : public Model {
public:
    CudaModel(std::shared_ptr<const Package> package, ModelInfo info, int threads, int device)
        : program_(*package, info, &find_cuda_layer<T>, name_of(device)), device_(device) {
        package_ = std::move(package);
        info_ = std::move(info);
        threads_ = threads;
        capability_ = guarded(device, [&] { return CudaDriver::get().compute_capability(device); });
        name_ = guarded(device, [&] { return CudaDriver::get().device_name(device); });
    }

    int num_exchanges() const override { return program_.num_exchanges; }
    int max_exchanged_width() const override { return program_.max_exchanged_width; }
    int descriptor_width() const override { return program_.descriptor_width; }
    bool on_device() const override { return true; }

    std::string place() const override {
        return name_of(device_) + " (" + name_ + ", sm_" + std::to_string(capability_) + ")";
    }
    std::string kernel_summary() const override {
        return executor_ != nullptr ? executor_->kernels().summary() : "kernels: not loaded";
    }

    void evaluate(const System& system, Communicator* communicator,
                  const Results& results) override {
        check_ghosts(system, communicator);
        timed([&] { run(system, communicator, results); });
    }

    bool evaluate_cell(const CellSystem& system, const Results& results) override {
        bool listed = false;
        if (system.num_nodes > 0) timed([&] { listed = run_cell(system, results); });
        return listed;
    }

    std::string report() const override {
        nlohmann::json out;
        out["device"] = name_of(device_);
        out["device_name"] = name_;
        out["dtype"] = info_.double_precision ? "float64" : "float32";
        out["nodes"] = graph_.num_nodes;
        out["edges"] = graph_.num_edges;
        out["bytes"] = executor_ != nullptr ? executor_->bytes() : 0;
        out["graph_bytes"] = graph_.bytes();
        out["milliseconds"] = total_ms_;
        out["graph_ms"] = graph_ms_;
        out["layers_ms"] = layers_ms_;
        out["forces_ms"] = forces_ms_;
        out["kernels"] = nlohmann::json::array();
        out["layers"] = nlohmann::json::array();
        if (own_listed_) {
            out["neighbors_ms"] = neighbors_ms_;
            out["neighbor_lists_built"] = lists_built_;
        }
        if (executor_ != nullptr) {
            out["kernels"] = nlohmann::json::parse(executor_->kernels().report(), nullptr, false);
            out["replays"] = executor_->replays();
            out["exchanged_bytes"] = executor_->exchanged_bytes();
            for (std::size_t i = 0; i < executor_->times().size(); ++i)
                out["layers"].push_back({{"name", program_.layers[i]->name},
                                         {"forward_ms", executor_->times()[i].forward},
                                         {"backward_ms", executor_->times()[i].backward}});
        }
        return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }

private:
    template <typename Function>
    void timed(const Function& function) {
        Clock whole;
        if (process_ == 0) process_ = getpid();
        if (process_ != getpid())
            throw EngineError(ErrorKind::device,
                              "the model is on " + place() +
                                  ", which a forked process cannot use: open it after the fork, or "
                                  "use the start method 'spawn'");
        try {
            guarded(device_, [&] {
                if (executor_ == nullptr) {
                    auto made = std::make_unique<CudaExecutor<T>>(program_, info_, device_);
                    made->prepare();
                    executor_ = std::move(made);
                }
                function();
            });
        } catch (const GeometryError&) {
            throw;  // nothing was done
        } catch (const EngineError& error) {
            forget(error.kind() == ErrorKind::memory);
            throw;
        } catch (...) {
            forget(true);
            throw;
        }
        total_ms_ = whole.lap();
    }

    void run(const System& system, Communicator* communicator, const Results& results) {
        Clock clock;
        const int threads = system.num_nodes < NODES_FOR_THREADS ? 1 : usable_threads(threads_);
        // a host that exchanges rows numbers them itself
        const bool changed =
            graph_.update_order(system, info_.r_max, info_.num_types(), communicator == nullptr);
        own_listed_ = false;
        const bool fresh = changed || !listed_;
        if (fresh) executor_->set_graph(graph_);
        if (fresh || !system.same_shifts) executor_->set_shifts(graph_, system, fresh);
        listed_ = true;
        graph_.gather_positions(system, executor_->positions(), threads);
        graph_ms_ = clock.lap();
        run_layers(communicator, results, threads);
    }

    // Whether the device makes lists of such a system.
    bool run_cell(const CellSystem& system, const Results& results) {
        Clock clock;
        const std::int64_t nodes = system.num_nodes;
        const int threads = nodes < NODES_FOR_THREADS ? 1 : usable_threads(threads_);
        if (watch_ == nullptr) watch_ = std::make_unique<ListWatch>(info_.r_max, system.skin);
        const ListChange change =
            watch_->look(nodes, system.positions, system.cell, system.periodic);
        if (change == ListChange::edges || !own_listed_ ||
            !std::equal(types_.begin(), types_.end(), system.types)) {
            check_types(system.types, nodes, info_.num_types());
            if (!executor_->make_list(*watch_, system, graph_)) {
                watch_->reset();
                return false;
            }
            types_.assign(system.types, system.types + nodes);
            watch_->keep(system.positions);
            listed_ = false;
            own_listed_ = true;
            ++lists_built_;
            neighbors_ms_ = clock.lap();
        } else if (change == ListChange::shifts) {
            executor_->set_cell(*watch_);
        }
        std::copy_n(system.positions, 3 * nodes, executor_->positions());
        graph_ms_ = clock.lap();
        run_layers(nullptr, results, threads);
        return true;
    }

    void run_layers(Communicator* communicator, const Results& results, int threads) {
        Clock clock;
        typename CudaExecutor<T>::Wanted wanted;
        wanted.forces = results.forces != nullptr;
        wanted.virial = results.virial != nullptr;
        wanted.virials = results.virials != nullptr;
        wanted.gradient = wanted.forces || wanted.virial || wanted.virials;
        wanted.energies = results.energies != nullptr;
        wanted.descriptors = results.descriptors;
        executor_->run(graph_, communicator, wanted);
        layers_ms_ = clock.lap();
        store(results, threads);
        forces_ms_ = clock.lap();
    }

    // From the order of the graph to that of the system.
    void store(const Results& results, int threads) const {
        const CudaExecutor<T>& found = *executor_;
        check_energy(found.energy());
        if (results.energy != nullptr) *results.energy = found.energy();
        const auto scatter = [&](std::int64_t n, int) {
            const std::int64_t to = graph_.node[size(n)];
            if (results.energies != nullptr && n < graph_.num_local)
                results.energies[to] = found.energies()[n];
            if (results.forces != nullptr)
                for (int d = 0; d < 3; ++d) results.forces[3 * to + d] = found.forces()[3 * n + d];
            if (results.virials != nullptr)
                for (int i = 0; i < 9; ++i)
                    results.virials[9 * to + i] = found.virials()[9 * n + i];
        };
        share(threads, graph_.num_nodes, scatter);
        if (results.virial != nullptr) std::copy_n(found.virial().begin(), 9, results.virial);
        if (results.descriptors != nullptr)
            check_finite(results.descriptors, graph_.num_local * program_.descriptor_width,
                         "descriptors");
        if (results.forces != nullptr) check_finite(results.forces, 3 * graph_.num_nodes, "forces");
        if (results.virial != nullptr) check_finite(results.virial, 9, "virials");
        if (results.virials != nullptr)
            check_finite(results.virials, 9 * graph_.num_nodes, "virials");
    }

    // After an error nothing of the list is trusted, and memory that was short is given back.
    void forget(bool release) {
        listed_ = own_listed_ = false;
        if (release && executor_ != nullptr) executor_->release();
    }

    Program<T> program_;
    int device_, capability_ = 0;
    pid_t process_ = 0;  // of the first evaluation
    std::string name_;
    std::unique_ptr<CudaExecutor<T>> executor_;
    Graph graph_;
    bool listed_ = false;  // is the graph on the device
    // Of lists that the device makes.
    std::unique_ptr<ListWatch> watch_;
    std::vector<std::int32_t> types_;  // [num_nodes], of the last one
    bool own_listed_ = false;          // is it on the device
    std::int64_t lists_built_ = 0;
    double neighbors_ms_ = 0;
    double graph_ms_ = 0, layers_ms_ = 0, forces_ms_ = 0, total_ms_ = 0;
};

}  // namespace

int parse_device(const std::string& text) {
    if (text == "cpu") return -1;
    bool number = text.compare(0, 5, "cuda:") == 0 && text.size() > 5 && text.size() < 9;
    for (std::size_t i = 5; number && i < text.size(); ++i)
        number = std::isdigit(static_cast<unsigned char>(text[i])) != 0;
    if (text != "cuda" && !number)
        throw EngineError(ErrorKind::unsupported,
                          "device is '" + text + "', expected 'cpu', 'cuda' or 'cuda:N'");
    const int device = number ? std::stoi(text.substr(5)) : 0;
    int count = 0;
    try {
        count = CudaDriver::get().device_count();
    } catch (const CudaError& error) {
        throw EngineError(ErrorKind::device, "device is '" + text +
                                                 "', and the CUDA driver finds none (" +
                                                 error.what() + "): use device cpu");
    } catch (const std::runtime_error& error) {
        throw EngineError(ErrorKind::device, "device is '" + text +
                                                 "', and there is no CUDA driver (" + error.what() +
                                                 "): install NVIDIA's, or use device cpu");
    }
    if (device >= count)
        throw EngineError(ErrorKind::device,
                          "device is '" + text + "', and there " +
                              (count == 0   ? "are none"
                               : count == 1 ? "is one, cuda:0"
                                            : "are cuda:0 to " + name_of(count - 1)) +
                              ": choose another one, or device cpu");
    return device;
}

std::unique_ptr<Model> open_cuda_model(std::shared_ptr<const Package> package, ModelInfo info,
                                       int threads, int device) {
    if (info.double_precision)
        return std::make_unique<CudaModel<double>>(std::move(package), std::move(info), threads,
                                                   device);
    return std::make_unique<CudaModel<float>>(std::move(package), std::move(info), threads, device);
}

}  // namespace mdcg
