// The arguments of operations in one evaluation, and the interface of operations on CPUs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/op.hpp"

namespace mdcg {

struct Graph;        // engine/graph.hpp: edges of this step, receiver-major and by sender block
class Points;        // engine/neighbors/points.hpp
class Communicator;  // engine/communicator.hpp
class KernelStore;   // engine/kernels/kernel_store.hpp

struct Range {
    std::int64_t begin, end;
};

// Rows of one evaluation, on a CPU or a device. An operation may read rows of nodes outside its
// range only of operands that are gathered.
template <typename T>
class StepRows {
public:
    const std::int32_t* types = nullptr;     // [n_total]
    double* energies = nullptr;              // [n_local], added to
    const double* energy_weights = nullptr;  // [n_local] weights of energies in E; null: ones
    T* edge_gradient = nullptr;              // [n_edges][3] dE/dvec; on devices, in parts
    bool with_gradient = false;              // whether a backward pass follows
    Communicator* communicator = nullptr;    // the host's, or null
    // On the host: the inputs of the system, such as its charge, by OpSpec::input_number.
    const double* inputs = nullptr;
    const double* waves_cell = nullptr;  // [3][3] whose waves are summed; null: those of the cell

    // The row of a node.
    T* value(const Operand& operand, std::int64_t node = 0) const {
        return values[static_cast<std::size_t>(operand.id)] + node * operand.rows.width;
    }
    T* gradient(const Operand& operand, std::int64_t node = 0) const {
        return gradients[static_cast<std::size_t>(operand.id)] + node * operand.rows.width;
    }
    double energy_weight(std::int64_t node) const {
        return energy_weights != nullptr ? energy_weights[node] : 1.0;
    }
    // The row of the gradient, or null if the operand needs no gradient.
    T* wanted_gradient(const Operand& operand, std::int64_t node = 0) const {
        return operand.needs_gradient ? gradient(operand, node) : nullptr;
    }

    std::vector<T*> values, gradients;  // by id; row n belongs to node n, also in chunk buffers
};

// The state of one thread in one evaluation.
template <typename T>
class Worker : public StepRows<T> {
public:
    const Graph* graph = nullptr;
    int thread = 0;
    // For operations on points or the system, which divide their work among threads themselves.
    const Points* points = nullptr;
    const double* positions = nullptr;  // [num_nodes][3] Å
    const double* cell = nullptr;       // [3][3] Å, rows are vectors; null: an open system
    const bool* periodic = nullptr;     // [3], if there is a cell
    int threads = 1;
    double* forces = nullptr;  // [num_local][3] added to; null without a backward pass
    double* virials =
        nullptr;               // [num_local][6] xx yy zz xy xz yz, added to by operations on points
    double* virial = nullptr;  // [3][3] added to by operations on the system

    // The row of a gradient, set to zero if this operation is the first that adds to it.
    T* started_gradient(const Operand& operand, std::int64_t node) const {
        T* const row = this->gradient(operand, node);
        if (!operand.accumulate) std::fill_n(row, operand.rows.width, T(0));
        return row;
    }
    // Scratch memory of this thread, aligned to 64 bytes, valid until the next call.
    char* scratch(std::size_t bytes);

private:
    std::vector<char> memory_;
};

template <typename T>
class CpuOp {
public:
    using Base = CpuOp;
    virtual ~CpuOp() = default;

    // Called once, before the first evaluation: takes generated kernels if there are any.
    virtual void prepare(KernelStore&) {}
    // Called if tensors of the specification have changed with inputs of the system.
    virtual void on_new_inputs() {}
    // Called once per evaluation, by one thread, after the graph is made and before the forward
    // pass: builds tables of pairs of types that occur for the first time.
    virtual void begin(const Graph&) {}
    // Whether, for this graph, the operation also computes the result of OpSpec::only_reader, whose
    // passes are then skipped.
    virtual bool fuses_next_op(const Worker<T>&) const { return false; }

    // Writes (or adds to, see Operand) the rows `nodes` of its outputs.
    virtual void forward(Worker<T>& worker, Range nodes) const = 0;
    // From the gradients of its outputs, writes (or adds to, see Operand) the rows `nodes` of the
    // gradients that its inputs need. Operations on edges add to worker.edge_gradient.
    virtual void backward(Worker<T>& worker, Range nodes) const = 0;
};

}  // namespace mdcg
