// The operations of a package: checked, in order, grouped into stages, with a plan of buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/integers.hpp"
#include "engine/op.hpp"
#include "engine/package/budget.hpp"
#include "engine/package/package.hpp"

namespace mdcg {

// Numbers of operations, values and stages are ints.
inline std::size_t at(int number) { return size(number); }

// Operations that a thread runs one after the other on a chunk of nodes.
struct Stage {
    IterationSpace space = IterationSpace::nodes;  // what the chunks divide; see rows()
    bool over_ghosts = false;  // forward: it runs for ghosts too; values depend on types alone
    std::size_t number = 0;    // among the stages of both passes, forward stages first
    std::vector<int> ops;      // in order of execution
    // Backward: values whose gradients at ghosts are first written in this stage. The executor
    // zeroes these rows before the stage; operations add to them until the exchange reads them.
    std::vector<int> zeroed;

    bool exchanges() const { return space == IterationSpace::exchange; }
    // The number of nodes for which an operation with iteration space `of` is called.
    std::int64_t rows(IterationSpace of, std::int64_t num_local, std::int64_t num_nodes) const {
        return over_ghosts || of == IterationSpace::sender_blocks ? num_nodes : num_local;
    }
};

// The memory of the rows of a value or of a gradient.
struct BufferSlot {
    // chunk: in a buffer of each thread; local, total: in an arena, a row for each local node or
    // for each node.
    enum Kind : char { none, chunk, local, total } kind = none;
    std::int64_t offset = 0;  // items per row before this matrix in the buffer or arena
};

// The buffers of one kind of evaluation. Matrices that are never needed at the same time share
// memory.
struct BufferPlan {
    std::vector<BufferSlot> values, gradients;  // [num_values]
    std::int64_t chunk_width = 0;               // items per row of a chunk buffer
    std::int64_t local_width = 0, total_width = 0;
    // For each stage (see Program::stage): items per node up to the end of the local matrices in
    // use. The executor of devices uses the memory behind them.
    std::vector<std::int64_t> local_in_use;
};

// Whether several operations share a stage, chunk by chunk, or each operation is a stage.
enum class Stages { shared, separate };

class Program {
public:
    // Throws EngineError that names the layer. The package must outlive the program.
    Program(const Package& package, const ModelInfo& info, Stages stages);

    // Returns the implementations of all operations. Throws EngineError, which names `device`, if
    // one is missing.
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

    // Marks the operations with tensors of these names. Throws EngineError if there is no operation
    // that can read one of them again.
    void find_dependent_ops(const Package& package, const std::vector<std::string>& tensors);

    // The number of inputs and outputs of all operations.
    std::size_t num_operands() const;

    struct Value {
        std::string name;
        Rows rows;
        std::vector<int> writers;  // operations; all but the first add
        bool merged = false;       // has no memory, because its writer adds to a sum instead
        bool depends_on_positions = false;
        bool has_gradient = false;  // whether the backward pass computes its gradient
        bool gathered = false;      // whether it is read at senders
        bool ghost_gradient =
            false;                 // whether its gradient is computed at senders, ghosts included
        std::vector<int> readers;  // operations
        // The operation after which it is complete; -1: none writes it.
        int last_writer() const { return writers.empty() ? -1 : writers.back(); }
    };

    std::vector<Value> values;
    std::vector<std::unique_ptr<OpSpec>> ops;
    std::vector<char> backward_active;  // [num_ops] whether the backward pass runs it
    std::vector<Stage> forward_stages, backward_stages;
    const Stage& stage(std::size_t number) const {
        const std::size_t forward = forward_stages.size();
        return number < forward ? forward_stages[number] : backward_stages[number - forward];
    }
    BufferPlan energy_plan, gradient_plan;
    // For separate stages on several streams. Values and gradients keep their memory longer than in
    // gradient_plan, so that operations can run at the same time.
    BufferPlan stream_plan;
    std::vector<int> descriptors;  // ids
    bool has_energy = false;       // a network of dipoles alone has none
    bool has_charges = false;      // the last descriptor is the charge of an atom
    bool has_dipoles = false;      // the last three descriptors are the dipole of an atom
    int num_exchanges = 0;
    int max_exchanged_width = 0;
    int descriptor_width = 0;
    bool reads_points = false;  // operations read Points instead of edges
    bool joins_systems = true;  // no operation needs a call for each system of a batch
    bool reads_system = false;  // operations read the cell, and add a virial of the system alone
    Budget budget;
    std::int64_t kernel_text = 0;  // approximate characters of all generated kernels
    std::string kernel_refusal;    // a sentence: why kernels are not generated; empty if they are

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
    // The first and the last stage in which an operation may run; negative if it does not run.
    struct Window {
        int begin, end;
    };
    std::vector<Window> windows(const std::vector<int>& stage_of, int earliest, bool backward,
                                bool beside) const;
    enum class PlanKind { energy, gradient, streams };
    bool has_gradient_in_place(const Value& value) const;
    BufferPlan plan(PlanKind kind);

    Stages stages_;
    int align_;
    std::vector<char> over_ghosts_;    // [num_ops] whether it also runs for ghosts
    std::vector<int> backward_order_;  // [num_ops]
};

// Checks everything that evaluations rely on: the manifest, its operations, that they compute an
// energy and write all values, and that all numbers are finite. Throws EngineError.
Program validate(const std::shared_ptr<const Package>& file);

}  // namespace mdcg
