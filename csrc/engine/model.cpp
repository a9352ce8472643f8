#include "engine/model.hpp"

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/cpu.hpp"
#include "core/threads.hpp"
#include "engine/executor.hpp"
#include "engine/program.hpp"

namespace mdcg {

namespace {

// Where no loader is given.
class GenericOnly : public KernelLoader {
public:
    const SharedLibrary* load(const std::string&) override { return nullptr; }
    void refuse(const std::string&, const std::string&) override {}
    std::string report() const override { return "[]"; }
    std::string summary() const override { return "generic kernels"; }
};

template <typename T>
class ModelOf : public Model {
public:
    ModelOf(std::shared_ptr<const Package> package, ModelInfo info,
            std::unique_ptr<KernelLoader> loader, int threads)
        : program_(*package, info), executor_(program_) {
        package_ = std::move(package);
        info_ = std::move(info);
        loader_ = std::move(loader);
        threads_ = threads;
        if (!loader_) loader_ = std::make_unique<GenericOnly>();
    }

    int num_exchanges() const override { return program_.num_exchanges; }
    int max_exchanged_width() const override { return program_.max_exchanged_width; }
    int descriptor_width() const override { return program_.descriptor_width; }
    std::string place() const override { return "cpu (" + instruction_set_level() + ")"; }
    std::string kernel_summary() const override { return loader_->summary(); }

    void evaluate(const System& system, Communicator* communicator,
                  const Results& results) override {
        Clock clock, whole;
        const int threads = usable_threads(threads_);
        check_ghosts(system, communicator);
        if (!prepared_) {
            for (const auto& layer : program_.layers) layer->prepare(*loader_);
            prepared_ = true;
        }
        clock.lap();
        // a host that exchanges rows numbers them itself
        graph_.update(system, info_.r_max, info_.num_types(), nodes_per_block(system.num_local),
                      communicator == nullptr, threads);
        graph_ms_ = clock.lap();
        const bool gradient =
            results.forces != nullptr || results.virial != nullptr || results.virials != nullptr;
        executor_.run(graph_, communicator, gradient, results.descriptors, threads);
        layers_ms_ = clock.lap();
        finish(results, threads);
        forces_ms_ = clock.lap();
        total_ms_ = whole.lap();
    }

    std::string report() const override {
        nlohmann::json out;
        out["instruction_set"] = simd<T>().name;
        out["dtype"] = info_.double_precision ? "float64" : "float32";
        out["nodes"] = graph_.num_nodes;
        out["edges"] = graph_.num_edges;
        out["bytes"] = graph_.bytes() + executor_.bytes();
        out["graph_bytes"] = graph_.bytes();
        out["milliseconds"] = total_ms_;
        out["graph_ms"] = graph_ms_;
        out["layers_ms"] = layers_ms_;
        out["forces_ms"] = forces_ms_;
        out["kernels"] = nlohmann::json::parse(loader_->report(), nullptr, false);
        out["layers"] = nlohmann::json::array();
        for (std::size_t i = 0; i < executor_.times().size(); ++i)
            out["layers"].push_back({{"name", program_.layers[i]->name},
                                     {"forward_ms", executor_.times()[i].forward},
                                     {"backward_ms", executor_.times()[i].backward}});
        return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }

private:
    // Small systems need chunks enough for many threads; never a function of the threads.
    static std::int64_t nodes_per_block(std::int64_t nodes) { return nodes < 1024 ? 16 : 32; }

    void finish(const Results& results, int threads) {
        double energy = 0;
        for (std::int64_t n = 0; n < graph_.num_local; ++n) {
            const double mine = executor_.energies()[static_cast<std::size_t>(n)];
            energy += mine;
            if (results.energies != nullptr)
                results.energies[graph_.node[static_cast<std::size_t>(n)]] = mine;
        }
        check_energy(energy);
        if (results.energy != nullptr) *results.energy = energy;
        if (results.descriptors != nullptr)
            check_finite(results.descriptors, graph_.num_local * program_.descriptor_width,
                         "descriptors");
        double* virials = results.virials;
        if (results.virial != nullptr && virials == nullptr) {
            virials_.resize(static_cast<std::size_t>(9 * graph_.num_nodes));
            virials = virials_.data();
        }
        if (results.forces == nullptr && virials == nullptr) return;
        executor_.assemble(graph_, results.forces, virials, threads);
        if (results.forces != nullptr) check_finite(results.forces, 3 * graph_.num_nodes, "forces");
        if (virials != nullptr) check_finite(virials, 9 * graph_.num_nodes, "virials");
        if (results.virial != nullptr) {
            std::fill(results.virial, results.virial + 9, 0.0);
            for (std::int64_t n = 0; n < graph_.num_nodes; ++n)
                for (int i = 0; i < 9; ++i) results.virial[i] += virials[9 * n + i];
        }
    }

    Program<T> program_;
    Executor<T> executor_;
    Graph graph_;
    bool prepared_ = false;
    std::vector<double> virials_;
    double graph_ms_ = 0, layers_ms_ = 0, forces_ms_ = 0, total_ms_ = 0;
};

}  // namespace

void Model::check_ghosts(const System& system, const Communicator* communicator) const {
    if (system.num_nodes > system.num_local && communicator == nullptr && num_exchanges() > 0)
        throw EngineError(ErrorKind::argument,
                          "the system has " + std::to_string(system.num_nodes - system.num_local) +
                              " ghosts and the model exchanges features of ghosts, expected a "
                              "communicator");
}

void Model::check_energy(double energy) {
    if (!std::isfinite(energy))
        throw EngineError(ErrorKind::numeric,
                          "the energy is " + std::to_string(energy) +
                              ", expected a finite number: atoms may be too close, or the "
                              "model does not know such structures");
}

void Model::check_finite(const double* numbers, std::int64_t count, const char* name) {
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += numbers[i];
    if (!std::isfinite(sum))
        throw EngineError(ErrorKind::numeric,
                          std::string(name) +
                              " are not finite numbers: atoms may be too close, or the model "
                              "does not know such structures");
}

std::unique_ptr<Model> Model::open(std::shared_ptr<const Package> package,
                                   std::unique_ptr<KernelLoader> loader, int threads) {
    ModelInfo info = read_model_info(*package);
    if (info.double_precision)
        return std::make_unique<ModelOf<double>>(std::move(package), std::move(info),
                                                 std::move(loader), threads);
    return std::make_unique<ModelOf<float>>(std::move(package), std::move(info), std::move(loader),
                                            threads);
}

}  // namespace mdcg
