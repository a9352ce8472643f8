// A package, ready to be evaluated.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/communicator.hpp"
#include "engine/error.hpp"
#include "engine/graph.hpp"
#include "engine/kernels.hpp"
#include "engine/package.hpp"

namespace mdcg {

// What is wanted; null pointers are left out, and nothing is computed for them. As mdcg_results.
struct Results {
    double* energy = nullptr;       // [1] of the local nodes
    double* energies = nullptr;     // [num_local]
    double* forces = nullptr;       // [num_nodes][3]
    double* virial = nullptr;       // [3][3]
    double* virials = nullptr;      // [num_nodes][3][3]
    double* descriptors = nullptr;  // [num_local][descriptor_width()]
};

// One thread at a time. Every function throws EngineError, or std::bad_alloc.
class Model {
public:
    // Builds and checks all layers; executes no code of the package, which happens at the first
    // evaluation. `loader` null: generic kernels only. `threads` 0: OpenMP's own choice.
    static std::unique_ptr<Model> open(std::shared_ptr<const Package> package,
                                       std::unique_ptr<KernelLoader> loader, int threads);
    virtual ~Model() = default;

    const Package& package() const { return *package_; }
    const ModelInfo& info() const { return info_; }
    virtual int num_exchanges() const = 0;
    virtual int max_exchanged_width() const = 0;  // items of the longest exchanged row
    virtual int descriptor_width() const = 0;
    void set_threads(int threads) { threads_ = threads; }

    virtual void evaluate(const System& system, Communicator* communicator,
                          const Results& results) = 0;
    // JSON object: kernels, milliseconds of each layer in the last evaluation, edges, bytes.
    virtual std::string report() const = 0;

protected:
    std::shared_ptr<const Package> package_;
    ModelInfo info_;
    std::unique_ptr<KernelLoader> loader_;
    int threads_ = 0;
};

}  // namespace mdcg
