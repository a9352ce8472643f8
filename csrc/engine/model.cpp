#include "engine/model.hpp"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "core/cpu.hpp"
#include "core/integers.hpp"
#include "core/text.hpp"
#include "core/threads.hpp"
#include "engine/executor.hpp"
#include "engine/neighbors/geometry_check.hpp"
#include "engine/neighbors/points.hpp"
#include "engine/package/limits.hpp"
#include "engine/program.hpp"

namespace mdcg {

namespace {

template <typename T>
class ModelOf : public Model {
public:
    ModelOf(std::shared_ptr<const Package> package, ModelInfo info, KernelChoice choice)
        : Model(std::move(package), std::move(info), Stages::shared),
          executor_(program_, *package_),
          kernels_(package_->kernels_of(package_), std::move(choice), program_.kernel_refusal) {}

    std::string device_label() const override { return "cpu (" + instruction_set_level() + ")"; }
    std::string kernel_summary() const override {
        return program_.reads_points ? "no kernels needed" : kernels_.summary();
    }

    std::size_t total_memory() const override {
        return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
               static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
    }
    double bytes_needed(double num_local, double num_nodes, double num_edges) const override {
        // Of NeighborList, which makes edges of all nodes, and of Graph and Executor.
        constexpr double OF_NODE = 200, OF_LISTED_EDGE = 60, OF_EDGE = 50 + 3 * sizeof(T);
        const BufferPlan& plan = program_.gradient_plan;
        return sizeof(T) * (static_cast<double>(plan.total_width) * num_nodes +
                            static_cast<double>(plan.local_width) * num_local) +
               OF_NODE * num_nodes + OF_EDGE * num_edges +
               OF_LISTED_EDGE * num_edges * num_nodes / std::max(num_local, 1.0);
    }

    void do_evaluate(const System& system, Communicator* communicator,
                     const Results& results) override {
        if (program_.reads_points && !system.make_edges && system.num_local > 0) refuse_edges();
        run(system, communicator, results, [&] { points_.update(system, info_.r_max); });
    }

    bool do_evaluate_cell(const CellSystem& cell, const Results& results) override {
        if (!program_.reads_points) return false;
        System system;
        system.num_local = system.num_nodes = cell.num_nodes;
        system.positions = cell.positions;
        system.types = cell.types;
        system.energy_weights = cell.energy_weights;
        system.cell = cell.cell;
        system.periodic = cell.periodic;
        system.inputs = cell.inputs;
        system.waves_cell = cell.waves_cell;
        run(system, nullptr, results, [&] { points_.update(cell, info_.r_max); });
        return true;
    }

    void reload_tensors() override { executor_.reload_tensors(); }

    void do_release() override {
        graph_ = Graph();
        points_ = Points();
        executor_.release();
        virials_ = std::vector<double>();
    }

protected:
    void add_to_report(nlohmann::json& out) const override {
        out["instruction_set"] = simd<T>().name;
        out["kernels"] = kernels_.report();
    }
    const std::vector<LayerTime>& times() const override { return executor_.times(); }
    std::size_t buffer_bytes() const override {
        return graph_.bytes() + points_.bytes() + executor_.bytes();
    }

private:
    // Blocks are small, so that small systems have work for many threads. Results depend on the
    // blocks, so the size must not depend on the number of threads.
    static std::int64_t nodes_per_block(std::int64_t nodes) { return nodes < 1024 ? 16 : 32; }

    template <typename FindPoints>
    void run(System system, Communicator* communicator, const Results& results,
             const FindPoints& find_points) {
        Clock clock, whole;
        const int threads = usable_threads(threads_);
        check_ghosts(system, communicator);
        if (!prepared_) {
            executor_.prepare(kernels_);
            prepared_ = true;
        }
        clock.lap();
        // communicators and points use the system's own numbers of nodes
        const bool reorder = communicator == nullptr && !program_.reads_points;
        if (program_.reads_points) system.same_edges = false;  // there are no edges
        graph_.update(system, info_.r_max, info_.num_types(), nodes_per_block(system.num_local),
                      reorder, threads);
        if (program_.reads_points) find_points();
        graph_ms_ = clock.lap();
        const bool gradient =
            results.forces != nullptr || results.virial != nullptr || results.virials != nullptr;
        executor_.run(graph_, &points_, system, communicator, gradient, results.descriptors,
                      threads);
        layers_ms_ = clock.lap();
        finish(results, threads);
        forces_ms_ = clock.lap();
        total_ms_ = whole.lap();
    }

    void finish(const Results& results, int threads) {
        double energy = 0;
        for (std::int64_t n = 0; n < graph_.num_local; ++n) {
            const double mine = executor_.energies()[size(n)];
            energy += mine;
            if (results.energies != nullptr) results.energies[graph_.node[size(n)]] = mine;
        }
        check_energy(energy);
        if (results.energy != nullptr) *results.energy = energy;
        double* virials = results.virials;
        if (results.virial != nullptr && virials == nullptr) {
            virials_.resize(size(9 * graph_.num_nodes));
            virials = virials_.data();
        }
        if (results.forces != nullptr || virials != nullptr)
            executor_.assemble(graph_, results.forces, virials, threads);
        if (results.virial != nullptr) {
            std::fill(results.virial, results.virial + 9, 0.0);
            for (std::int64_t n = 0; virials != nullptr && n < graph_.num_nodes; ++n)
                for (int i = 0; i < 9; ++i) results.virial[i] += virials[9 * n + i];
            for (std::size_t i = 0; i < 9; ++i) results.virial[i] += executor_.system_virial()[i];
        }
        check_finite(results);
    }

    Executor<T> executor_;
    KernelStore kernels_;
    bool prepared_ = false;
    Points points_;  // if the program reads them
    std::vector<double> virials_;
};

// The norm of the strain from one cell to another.
double strain_between(const double* from, const double* to) {
    constexpr std::array<bool, 3> ALL{true, true, true};
    const Matrix3 change = multiply(invert(complete_cell(from, ALL)), complete_cell(to, ALL));
    double square = 0;
    for (std::size_t a = 0; a < 3; ++a)
        for (std::size_t b = 0; b < 3; ++b) {
            double strain = a == b ? -0.5 : 0.0;
            for (const Vector3& row : change) strain += 0.5 * row[a] * row[b];
            square += strain * strain;
        }
    return std::sqrt(square);
}

}  // namespace

void Model::evaluate(System system, Communicator* communicator, const Results& results) {
    const bool shifted =
        system.shifts != nullptr || system.images != nullptr || system.num_copies > 0;
    const bool* const periodic = system.periodic;
    const bool lacks_cell =
        periodic == nullptr ? shifted
                            : system.cell == nullptr && (periodic[0] || periodic[1] || periodic[2]);
    check_system(results, system.energy_weights, lacks_cell);
    system.inputs = apply_inputs(system.inputs, system.num_nodes);
    const ListNumbers held = std::exchange(list_, {});
    system.same_edges = system.list.edges != 0 && system.list.edges == held.edges;
    system.same_shifts =
        system.same_edges && system.list.shifts != 0 && system.list.shifts == held.shifts;
    with_waves(system.cell, system.periodic, [&](const double* waves_cell) {
        system.waves_cell = waves_cell;
        do_evaluate(system, communicator, results);
        return true;
    });
    list_ = system.list;
    if (list_.edges == 0) list_.edges = next_list_number();
    if (list_.shifts == 0) list_.shifts = next_list_number();
}

const double* Model::apply_inputs(const double* given, std::int64_t num_nodes) {
    if (info_.inputs.empty()) return nullptr;
    // an evaluation without nodes and inputs only loads kernels
    if (given != nullptr || num_nodes > 0) {
        if (inputs_.set(inputs_.complete(given))) inputs_taken_ = false;
        if (!inputs_taken_) reload_tensors();
        inputs_taken_ = true;
    }
    return inputs_.values();
}

bool Model::evaluate_cell(CellSystem system, const Results& results) {
    check_system(results, system.energy_weights, false);
    system.inputs = apply_inputs(system.inputs, system.num_nodes);
    const ListNumbers held = std::exchange(list_, {});
    const bool found = with_waves(system.cell, system.periodic, [&](const double* waves_cell) {
        system.waves_cell = waves_cell;
        return do_evaluate_cell(system, results);
    });
    if (!found) list_ = held;
    return found;
}

template <typename Evaluate>
bool Model::with_waves(const double* cell, const bool* periodic, const Evaluate& evaluate) {
    const bool in_cell = cell != nullptr && periodic != nullptr && periodic[0] && periodic[1] &&
                         periodic[2] && program_.reads_system;
    if (!fixed_waves_ || !in_cell) return evaluate(nullptr);
    if (!waves_cell_.empty()) {
        constexpr double MOST_STRAIN = 0.25;  // 22 % of one length, or 13 % of all three
        const double strain = strain_between(waves_cell_.data(), cell);
        if (!(strain <= MOST_STRAIN))
            bad_argument(
                "fixed_waves keeps the waves of the first cell of this model, and this cell "
                "is strained by " +
                number_text(100 * strain, 3) + " % from it, expected at most " +
                number_text(100 * MOST_STRAIN) +
                " % and the same three vectors: leave fixed_waves out, or take this cell first "
                "(with "
                "a new calculator in ASE, pair_coeff in LAMMPS, a new model in C)");
        return evaluate(waves_cell_.data());
    }
    if (!evaluate(nullptr)) return false;
    waves_cell_.assign(cell, cell + 9);
    return true;
}

bool Model::evaluate_batch(Batch batch, const Results& results) {
    check_system(results, nullptr, false);
    batch.inputs = apply_inputs(batch.num_systems > 0 ? batch.inputs : nullptr, batch.num_nodes());
    batch.num_inputs = 0;  // the same for all systems
    const ListNumbers held = std::exchange(list_, {});
    const bool found = do_evaluate_batch(batch, results);
    if (!found) list_ = held;
    return found;
}

void Model::release() {
    list_ = {};
    do_release();
}

void Model::check_peers(Communicator& /*communicator*/) const {
    throw EngineError(ErrorKind::unsupported,
                      "the model is on " + device_label() + ", expected a device");
}

void Model::check_ghosts(const System& system, const Communicator* communicator) const {
    if (system.num_nodes > system.num_local && communicator == nullptr && num_exchanges() > 0 &&
        !system.empty_ghosts)
        bad_argument("the system has " + std::to_string(system.num_nodes - system.num_local) +
                     " ghosts and the model exchanges features of ghosts, expected a "
                     "communicator");
}

void Model::check_system(const Results& results, const double* energy_weights,
                         bool lacks_cell) const {
    if (!program_.reads_system) return;
    const auto refuse = [&](const std::string& sentence) {
        throw EngineError(ErrorKind::unsupported, "the network of " + package_->path() +
                                                      " has a long-range sum, " + sentence);
    };
    if (results.virials != nullptr)
        refuse("which has no virials of single atoms: ask for the virial of the system");
    if (energy_weights != nullptr)
        refuse("which does not support energy_weights, as for heat fluxes: leave them out");
    if (lacks_cell)
        refuse("and a periodic system is given without a cell, expected cell and periodic");
}

void Model::check_energy(double energy) {
    if (!std::isfinite(energy))
        throw EngineError(ErrorKind::numeric,
                          "the energy is " + number_text(energy) +
                              ", expected a finite number: atoms may be too close, or the "
                              "model does not know such structures");
}

void Model::check_finite(const Results& results) const {
    const auto check = [](const double* numbers, std::int64_t count, const char* name) {
        if (numbers == nullptr) return;
        // several sums, because each addition to one sum would wait for the last
        constexpr int SUMS = 8;
        double sums[SUMS] = {};
        std::int64_t i = 0;
        for (; i + SUMS <= count; i += SUMS)
            for (int k = 0; k < SUMS; ++k) sums[k] += numbers[i + k];
        for (; i < count; ++i) sums[0] += numbers[i];
        if (!std::isfinite(std::accumulate(sums, sums + SUMS, 0.0)))
            throw EngineError(ErrorKind::numeric,
                              std::string(name) +
                                  " are not finite numbers: atoms may be too close, or the model "
                                  "does not know such structures");
    };
    check(results.descriptors, graph_.num_local * program_.descriptor_width, "descriptors");
    check(results.forces, 3 * graph_.num_nodes, "forces");
    check(results.virial, 9, "virials");
    check(results.virials, 9 * graph_.num_nodes, "virials");
}

nlohmann::json Model::report() const {
    nlohmann::json out;
    out["dtype"] = info_.double_precision ? "float64" : "float32";
    out["nodes"] = graph_.num_nodes;
    out["edges"] = graph_.num_edges;
    out["bytes"] = buffer_bytes();
    out["graph_bytes"] = graph_.bytes();
    out["budget_bytes"] = program_.budget.asked;
    out["budget_limit_bytes"] = program_.budget.limit;
    out["kernel_text"] = program_.kernel_text;
    out["kernel_text_limit"] = limits::MAX_KERNEL_TEXT;
    out["milliseconds"] = total_ms_;
    out["graph_ms"] = graph_ms_;
    out["layers_ms"] = layers_ms_;
    out["forces_ms"] = forces_ms_;
    out["kernels"] = nlohmann::json::array();
    out["layers"] = nlohmann::json::array();
    for (std::size_t i = 0; i < times().size(); ++i)
        out["layers"].push_back({{"name", program_.ops[i]->name},
                                 {"forward_ms", times()[i].forward},
                                 {"backward_ms", times()[i].backward}});
    add_to_report(out);
    return out;
}

std::unique_ptr<Model> Model::open(std::shared_ptr<const Package> package, ModelInfo info,
                                   KernelChoice choice) {
    if (info.double_precision)
        return std::make_unique<ModelOf<double>>(std::move(package), std::move(info),
                                                 std::move(choice));
    return std::make_unique<ModelOf<float>>(std::move(package), std::move(info), std::move(choice));
}

}  // namespace mdcg
