// A package that is ready to be evaluated.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/batch.hpp"
#include "engine/communicator.hpp"
#include "engine/error.hpp"
#include "engine/graph.hpp"
#include "engine/inputs.hpp"
#include "engine/kernels/kernel_store.hpp"
#include "engine/package/package.hpp"
#include "engine/program.hpp"

namespace mdcg {

struct LayerTime {
    double forward = 0, backward = 0;  // milliseconds, mean of the threads
};

// For one thread at a time. Every function throws EngineError or std::bad_alloc.
class Model {
public:
    // Builds and checks all layers of a model for CPUs (for devices: engine/cuda/model.hpp). The
    // first evaluation loads the kernels.
    static std::unique_ptr<Model> open(std::shared_ptr<const Package> package, ModelInfo info,
                                       KernelChoice choice);
    virtual ~Model() = default;

    const Package& package() const { return *package_; }
    // The package as it was opened, for another model.
    const std::shared_ptr<const Package>& shared_package() const { return inputs_.file(); }
    const ModelInfo& info() const { return info_; }
    int num_exchanges() const { return program_.num_exchanges; }
    // Items of the longest exchanged row.
    int max_exchanged_width() const { return program_.max_exchanged_width; }
    int descriptor_width() const { return program_.descriptor_width; }
    bool has_energy() const { return program_.has_energy; }
    bool has_charges() const { return program_.has_charges; }
    bool has_dipoles() const { return program_.has_dipoles; }
    void set_threads(int threads) { threads_ = threads; }  // 0: OpenMP's own choice
    // Bytes that evaluations may take; 0: all that there are. On CPUs nothing holds them to it.
    void set_memory(std::size_t bytes) { memory_ = bytes; }
    // Long-range sums of later cells go over the waves of the first one.
    void fix_waves() { fixed_waves_ = true; }
    // Bytes of the device, or of the host.
    virtual std::size_t total_memory() const = 0;
    // About the bytes that forces of such a system take.
    virtual double bytes_needed(double num_local, double num_nodes, double num_edges) const = 0;
    // How many cutoffs away an atom can be on which an energy depends; 0: any distance.
    int reach_in_cutoffs() const {
        return program_.reads_points || program_.reads_system ? 0 : program_.num_exchanges + 1;
    }
    // Whether it has a long-range sum, which needs the cell also where edges are given.
    bool reads_system() const { return program_.reads_system; }

    // Returns the values of all inputs of a system; see InputTensors::complete.
    std::vector<double> complete_inputs(const double* given) const {
        return inputs_.complete(given);
    }

    void evaluate(System system, Communicator* communicator, const Results& results);
    // Evaluates a system whose edges the model finds itself. Returns false, without evaluating, if
    // the model cannot find edges. Also throws GeometryError.
    bool evaluate_cell(CellSystem system, const Results& results);
    // The same for many systems with equal inputs; results have an energy and a virial for each
    // system.
    bool evaluate_batch(Batch batch, const Results& results);
    // The list that the model holds; zeros if it holds none, as after a failure, a batch, or an
    // evaluation of a cell on a device.
    const ListNumbers& list() const { return list_; }
    // Frees the memory of evaluations.
    void release();
    // Throws unless rows can go from device to device; see mdcg_check_peers.
    virtual void check_peers(Communicator& communicator) const;
    // An object with kernels, milliseconds of each layer in the last evaluation, edges and bytes.
    nlohmann::json report() const;

    virtual bool on_device() const { return false; }
    // Whether the model finds neighbours itself, also those of ghosts and copies.
    virtual bool makes_edges() const { return program_.reads_points; }
    // For logs: the device, such as "cpu (x86-64-v3)", and the origin of the kernels.
    virtual std::string device_label() const = 0;
    virtual std::string kernel_summary() const = 0;

protected:
    Model(std::shared_ptr<const Package> package, ModelInfo info, Stages stages)
        : inputs_(std::move(package), info),
          package_(inputs_.package()),
          info_(std::move(info)),
          program_(*package_, info_, stages) {
        program_.find_dependent_ops(*package_, inputs_.names());
    }

    virtual void do_evaluate(const System& system, Communicator* communicator,
                             const Results& results) = 0;
    virtual bool do_evaluate_cell(const CellSystem&, const Results&) { return false; }
    virtual bool do_evaluate_batch(const Batch&, const Results&) { return false; }
    virtual void do_release() = 0;
    // Lets operations take tensors that have changed with inputs of the system.
    virtual void reload_tensors() = 0;
    // Adds the entries that only this kind of model reports.
    virtual void add_to_report(nlohmann::json& out) const = 0;
    virtual const std::vector<LayerTime>& times() const = 0;  // [num_ops] of the last evaluation
    virtual std::size_t buffer_bytes() const = 0;

    class Clock {
    public:
        // Milliseconds since the constructor or the last lap.
        double lap() {
            const auto last = before_;
            before_ = std::chrono::steady_clock::now();
            return std::chrono::duration<double, std::milli>(before_ - last).count();
        }

    private:
        std::chrono::steady_clock::time_point before_ = std::chrono::steady_clock::now();
    };

    // For networks that read points.
    [[noreturn]] static void refuse_edges() {
        bad_argument("the network finds distant neighbours itself, expected make_edges");
    }
    // These throw EngineError if ghosts would have no features, or if results are not finite.
    void check_ghosts(const System& system, const Communicator* communicator) const;
    static void check_energy(double energy);
    void check_finite(const Results& results) const;

    InputTensors inputs_;
    std::shared_ptr<const Package> package_;
    ModelInfo info_;
    int threads_ = 0;
    std::size_t memory_ = 0;
    Program program_;
    Graph graph_;
    double graph_ms_ = 0, layers_ms_ = 0, forces_ms_ = 0, total_ms_ = 0;

private:
    // Throws EngineError for what long-range sums do not support.
    void check_system(const Results& results, const double* energy_weights, bool lacks_cell) const;
    // Calls `evaluate` with the cell whose waves are kept, or null, and returns its result. Keeps
    // the first cell if that is true. Throws EngineError if the cell differs much from the one
    // kept.
    template <typename Evaluate>
    bool with_waves(const double* cell, const bool* periodic, const Evaluate& evaluate);

    // Sets the inputs of the next evaluation, and returns their values, or null without inputs.
    const double* apply_inputs(const double* given, std::int64_t num_nodes);

    ListNumbers list_;
    bool inputs_taken_ = true;  // by the operations
    bool fixed_waves_ = false;
    std::vector<double> waves_cell_;  // [3][3] of the first periodic system; empty: none yet
};

}  // namespace mdcg
