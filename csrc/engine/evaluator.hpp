// A model with its kernels and neighbour list: what the C interface and Python hold.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/domains.hpp"
#include "engine/model.hpp"
#include "engine/neighbors/neighbor_list.hpp"
#include "engine/package/dispersion.hpp"

namespace mdcg {

struct EvaluatorOptions {
    std::string device = "cpu";        // or "cuda", "cuda:N"
    std::string kernels = "auto";      // or "generic", "generated", the name of a file
    int threads = 0;                   // 0: OpenMP's own choice
    double skin = 1;                   // Å, of lists made from a cell
    std::string precision = {};        // "fp32" or "fp64" as in the package, or empty
    DispersionChoice dispersion = {};  // if it has a functional, replaces the network
    // Memory that evaluations may take, as "90 %" of that of the device or "120 GB"; empty: all. A
    // system that needs more is evaluated in domains, one after the other.
    std::string memory = {};
    int memory_models = 1;  // models that share it
    // Long-range sums keep the waves of the first cell, with their integers, when the cell changes.
    bool fixed_waves = false;
};

// For one thread at a time. Every function throws EngineError or std::bad_alloc.
class Evaluator {
public:
    Evaluator(std::shared_ptr<const Package> file, const EvaluatorOptions& options);

    const ModelInfo& info() const { return model_->info(); }
    const Package& package() const { return model_->package(); }
    // The file as it was read. It also holds the network if this evaluates its dispersion.
    const std::shared_ptr<const Package>& file() const { return file_; }
    const Model& model() const { return *model_; }
    void set_threads(int threads);
    // Loads the kernels; otherwise the first evaluation loads them.
    void prepare();

    void evaluate(const System& system, Communicator* communicator, const Results& results);
    // Finds the edges of an open or periodic system without ghosts, and evaluates it.
    void evaluate(const CellSystem& system, const Results& results);
    // Evaluates systems that do not interact, several at once. Results have a row of energy and
    // virial for each system.
    void evaluate(const Batch& batch, const Results& results);
    double skin() const { return skin_; }
    // See Model::list.
    const ListNumbers& list() const { return model_->list(); }
    // Frees the memory of evaluations.
    void release();

    // Model::report, neighbour lists and versions, as JSON.
    std::string report() const;
    // One line, such as
    // "mace ScaleShiftMACE, float32, cpu (x86-64-v3), 2 threads, kernels: 3 cached"
    // "mace ScaleShiftMACE, float32, cuda:0 (NVIDIA H200, sm_90), kernels: 9 cached"
    // "mace ScaleShiftMACE, float32, cuda:0 (NVIDIA H200, sm_90), 5 domains of at most 2419381
    // atoms, kernels: 9 cached"
    std::string summary() const;

private:
    // Calls a function, and turns a GeometryError into an EngineError. Frees memory if it runs out.
    template <typename Function>
    auto guarded(const Function& function);
    void run(const System& system, Communicator* communicator, const Results& results);
    // Evaluates a batch whose systems have equal inputs.
    void evaluate_alike(const Batch& batch, const Results& results);
    // The systems of a batch by the values of their inputs, in the order given; at least one group.
    std::vector<std::vector<std::int64_t>> groups_of(const Batch& batch) const;
    void share_groups(const Batch& batch, const Results& results);
    void make_domains();
    void evaluate_each(const Batch& batch, const Results& results);
    // Evaluates a system, in domains if it needs them. Throws GeometryError, too.
    void evaluate_within_memory(const CellSystem& system, const Results& results);
    void evaluate_whole(const CellSystem& system, const Results& results);
    void evaluate_domains(const CellSystem& system, const Results& results);
    // Domains::divide, whose MemoryError becomes an EngineError that says which memory would do.
    bool divide(const CellSystem& system);
    // What to do about a lack of memory that dividing a system could mend.
    EngineError with_advice(const MemoryError& error, std::int64_t num_atoms) const;
    // Whether the last evaluation read the edges of neighbors_.
    bool has_own_edges() const {
        return neighbors_ != nullptr && list().edges != 0 &&
               list().edges == neighbors_->numbers().edges;
    }
    // Throws EngineError if the network cannot compute the results that are wanted.
    void check(const Results& results) const;

    std::shared_ptr<const Package> file_;
    std::unique_ptr<Model> model_;
    KernelChoice choice_;
    std::vector<std::unique_ptr<Model>> others_;  // copies of the model for threads of batches
    std::unique_ptr<NeighborList> neighbors_;
    std::int64_t neighbors_outer_ = 0;  // CellSystem::num_outer of that list
    double skin_, neighbors_skin_ = 0, neighbors_ms_ = 0;
    int threads_ = 0;
    bool prepared_ = false;

    double memory_ = 0;  // bytes that evaluations may take; 0: all
    bool fixed_waves_ = false;
    int memory_models_ = 1;             // models that share the memory that the option names
    std::unique_ptr<Domains> domains_;  // null: systems are evaluated whole
    bool in_domains_ = false;           // the last evaluation
    double domains_ms_ = 0;             // of the last evaluation in domains
};

}  // namespace mdcg
