// Layers in order, checked, grouped into stages, with a plan of the buffers they need.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/layer.hpp"
#include "engine/package.hpp"
#include "engine/registry.hpp"

namespace mdcg {

// Layers that one thread runs after each other on one chunk of nodes.
struct Stage {
    Walk walk = Walk::nodes;   // what the chunks are of: sender_blocks has ghosts too
    bool over_ghosts = false;  // forward: chunks of all nodes (values that types alone decide)
    std::vector<int> layers;   // in order of execution
    std::vector<int> added;    // backward: values whose gradients a walk over senders adds to
};

// Where the rows of a value or of a gradient stand.
struct Place {
    enum Kind : char { none, chunk, local, total } kind = none;
    std::int64_t offset =
        0;  // items: of the thread's chunk buffer per row, or of the arena per row
};

// Buffers of one kind of evaluation. Arenas hold, one after the other, matrices with a row for
// every local node, or for every node; those that are never alive together share their place.
struct BufferPlan {
    std::vector<Place> values, gradients;  // by id
    std::int64_t chunk_width = 0;          // items per row of a chunk buffer
    std::int64_t local_width = 0, total_width = 0;
};

template <typename T>
class Program {
public:
    // With layers of the processor, several of which share a stage. Throws EngineError that names
    // the layer.
    Program(const Package& package, const ModelInfo& info);
    // With the layers of a kind of device; each is a stage of its own, for all nodes at once.
    Program(const Package& package, const ModelInfo& info,
            LayerFactory<T> (*find)(const std::string&), const std::string& device);

    struct Value {
        std::string name;
        Rows rows;
        int writer = -1;
        bool depends_on_positions = false;
        bool has_gradient = false;  // a gradient is wanted and is found
        bool gathered = false;      // read at senders
        std::vector<int> readers;
    };

    std::vector<Value> values;
    std::vector<std::unique_ptr<Layer<T>>> layers;
    std::vector<char> backward_active;  // by layer
    std::vector<Stage> forward_stages, backward_stages;
    BufferPlan energy_plan, gradient_plan;
    std::vector<int> descriptors;  // ids
    int num_exchanges = 0;
    int max_exchanged_width = 0;
    int descriptor_width = 0;

private:
    void build(const Package& package, const ModelInfo& info);
    void build_layers(const Package& package, const ModelInfo& info);
    [[noreturn]] void unknown(const Package& package, std::size_t layer,
                              const std::string& type) const;
    void connect(const Package& package);
    void check_ghosts(const Package& package);
    void find_gradients();
    void group_forward();
    void group_backward();
    BufferPlan plan(bool with_gradient);

    LayerFactory<T> (*find_)(const std::string&);
    std::string device_;             // "": the processor
    std::vector<char> over_ghosts_;  // by layer
};

extern template class Program<float>;
extern template class Program<double>;

}  // namespace mdcg
