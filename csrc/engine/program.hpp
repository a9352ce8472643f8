// Layers in order, checked, grouped into stages, with a plan of the buffers they need.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/layer.hpp"
#include "engine/package.hpp"

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
    // Throws EngineError that names the layer.
    Program(const Package& package, const ModelInfo& info);

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
    void build_layers(const Package& package, const ModelInfo& info);
    void connect(const Package& package);
    void check_ghosts(const Package& package);
    void find_gradients();
    void group_forward();
    void group_backward();
    BufferPlan plan(bool with_gradient);

    std::vector<char> over_ghosts_;  // by layer
};

extern template class Program<float>;
extern template class Program<double>;

}  // namespace mdcg
