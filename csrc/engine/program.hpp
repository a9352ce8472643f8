// Operations in order, checked, grouped into stages, with a plan of the buffers they need.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/ops/op.hpp"
#include "engine/package/budget.hpp"
#include "engine/package/package.hpp"

namespace mdcg {

// Operations that one thread runs after each other on one chunk of nodes.
struct Stage {
    IterationSpace space = IterationSpace::nodes;  // what the chunks are of; see rows()
    bool over_ghosts = false;  // forward: chunks of all nodes (values that types alone decide)
    std::size_t number = 0;    // among the stages of both passes, those of the backward pass last
    std::vector<int> ops;      // in order of execution
    // Backward: values whose gradients of ghosts come into being in this stage. The executor zeroes
    // these rows before it, operations only add to them, and the exchange reads them once they are
    // whole.
    std::vector<int> zeroed;

    bool exchanges() const { return space == IterationSpace::exchange; }
    // Nodes that one of its operations is called for.
    std::int64_t rows(IterationSpace of, std::int64_t num_local, std::int64_t num_nodes) const {
        return over_ghosts || of == IterationSpace::sender_blocks ? num_nodes : num_local;
    }
};

// Where the rows of a value or of a gradient stand.
struct BufferSlot {
    enum Kind : char { none, chunk, local, total } kind = none;
    // Items: of the thread's chunk buffer per row, or of the arena per row.
    std::int64_t offset = 0;
};

// Buffers of one kind of evaluation. Arenas hold, one after the other, matrices with a row for
// every local node, or for every node; those that are never needed together share their place.
struct BufferPlan {
    std::vector<BufferSlot> values, gradients;  // by id
    std::int64_t chunk_width = 0;               // items per row of a chunk buffer
    std::int64_t local_width = 0, total_width = 0;
    // For each stage (see Program::stage): where the local matrices that are in use end, in items
    // per node. Memory behind is free during the stage. Only the executor of devices uses this.
    std::vector<std::int64_t> local_in_use;
};

// Whether several operations share a stage, chunk by chunk, or each is a stage for all nodes.
enum class Stages { shared, separate };

class Program {
public:
    // Throws EngineError that names the layer. The package must stay.
    Program(const Package& package, const ModelInfo& info, Stages stages);

    // What runs its operations; `device` is said where there is no implementation. Throws
    // EngineError.
    template <typename Op>
    std::vector<std::unique_ptr<Op>> implement(const Package& package,
                                               const std::string& device) const {
        std::vector<std::unique_ptr<Op>> found;
        for (std::size_t i = 0; i < ops.size(); ++i) {
            const MakeOp<Op> make = std::get<MakeOp<Op>>(op_types().at(ops[i]->type).make);
            if (make == nullptr) no_implementation(package, i, device);
            found.push_back(make(*ops[i]));
        }
        return found;
    }

    // Inputs and outputs of all operations.
    std::size_t num_operands() const;

    struct Value {
        std::string name;
        Rows rows;
        std::vector<int> writers;  // operations; those after the first add
        bool merged = false;       // its writer adds to a sum instead: it has no memory
        bool depends_on_positions = false;
        bool has_gradient = false;    // a gradient is wanted and is found
        bool gathered = false;        // read at senders
        bool ghost_gradient = false;  // a gradient is found at senders, ghosts included
        std::vector<int> readers;
        // The operation after which it is whole; -1: none writes it.
        int last_writer() const { return writers.empty() ? -1 : writers.back(); }
    };

    std::vector<Value> values;
    std::vector<std::unique_ptr<OpSpec>> ops;
    std::vector<char> backward_active;  // by operation
    std::vector<Stage> forward_stages, backward_stages;
    const Stage& stage(std::size_t number) const {
        const std::size_t forward = forward_stages.size();
        return number < forward ? forward_stages[number] : backward_stages[number - forward];
    }
    BufferPlan energy_plan, gradient_plan;
    // For separate stages and a backward pass on several streams. Values and gradients keep their
    // memory longer than in gradient_plan, so that operations can run at the same time.
    BufferPlan stream_plan;
    std::vector<int> descriptors;  // ids
    bool has_energy = false;       // a network of dipoles alone has none
    int num_exchanges = 0;
    int max_exchanged_width = 0;
    int descriptor_width = 0;
    bool reads_points = false;  // of Graph, in place of its edges
    Budget budget;
    std::int64_t kernel_text = 0;  // characters of all generated kernels, about
    std::string kernel_refusal;    // why none are generated, as a sentence; empty: they are

private:
    void read_values(const Package& package, const ModelInfo& info);
    void read_ops(const Package& package, ModelInfo info);
    void measure_kernels();
    [[noreturn]] void no_implementation(const Package& package, std::size_t op,
                                        const std::string& device) const;
    void merge_sums();
    void connect(const Package& package);
    std::string where(int op) const;
    std::vector<char> find_active() const;
    void check_ghosts(const Package& package);
    void find_backward_order();
    void find_gradients();
    void group_forward();
    void group_backward();
    // The first and the last stage at which an operation may run; negative if it does not run.
    struct Window {
        int begin, end;
    };
    std::vector<Window> windows(const std::vector<int>& stage_of, int earliest, bool backward,
                                bool beside) const;
    enum class PlanKind { energy, gradient, streams };
    BufferPlan plan(PlanKind kind);

    Stages stages_;
    int align_;
    std::vector<char> over_ghosts_;    // by operation
    std::vector<int> backward_order_;  // of operations
};

// Checks everything that evaluations rely on: the manifest, its operations, that they give an
// energy and write all values, and that all numbers are finite. Throws EngineError.
Program validate(const Package& package);

}  // namespace mdcg
