// What implementations of operations see of one evaluation, and what they are on CPUs.
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

// Rows of one evaluation, on a CPU or a device. Rows of other nodes than the present ones exist
// only for operands that are gathered.
template <typename T>
class StepRows {
public:
    const std::int32_t* types = nullptr;     // [n_total]
    double* energies = nullptr;              // [n_local], added to
    const double* energy_weights = nullptr;  // [n_local], of the sum that is derived; null: ones
    T* edge_gradient = nullptr;              // [n_edges][3], dE/dvec; on devices, in parts
    bool with_gradient = false;              // is a backward pass wanted
    Communicator* communicator = nullptr;    // of the host, or null

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
    // Null where none is wanted.
    T* wanted_gradient(const Operand& operand, std::int64_t node = 0) const {
        return operand.needs_gradient ? gradient(operand, node) : nullptr;
    }

    std::vector<T*> values, gradients;  // by id; biased: index with absolute node numbers
};

// What one thread sees of one evaluation.
template <typename T>
class Worker : public StepRows<T> {
public:
    const Graph* graph = nullptr;
    int thread = 0;
    // Of operations on points, which share their work themselves.
    const Points* points = nullptr;
    int threads = 1;
    double* forces = nullptr;   // [num_local][3] added to; null without a backward pass
    double* virials = nullptr;  // [num_local][6] xx yy zz xy xz yz, added to

    // The row of a gradient, zero where nothing has been added yet.
    T* started_gradient(const Operand& operand, std::int64_t node) const {
        T* const row = this->gradient(operand, node);
        if (!operand.accumulate) std::fill_n(row, operand.rows.width, T(0));
        return row;
    }
    // At least `bytes` bytes of this thread, 64-byte aligned, until the next call; grows in
    // warm-up.
    char* scratch(std::size_t bytes);

private:
    std::vector<char> memory_;
};

template <typename T>
class CpuOp {
public:
    using Base = CpuOp;
    virtual ~CpuOp() = default;

    // Takes generated kernels where there are any; once, before the first evaluation.
    virtual void prepare(KernelStore&) {}
    // Once per evaluation, by one thread, after the graph is made and before the forward pass:
    // builds what is new (tables of pairs of types that occur for the first time).
    virtual void begin(const Graph&) {}
    // True if, for that graph, the operation also computes the result of OpSpec::only_reader, whose
    // passes are then skipped.
    virtual bool fuses_next_op(const Worker<T>&) const { return false; }

    // Writes (or adds to, see Operand) the rows `nodes` of its outputs.
    virtual void forward(Worker<T>& worker, Range nodes) const = 0;
    // Given gradients of its outputs, writes (or adds to, see Operand) those of its inputs that
    // need one, for the rows `nodes`; operations on edges add to worker.edge_gradient.
    virtual void backward(Worker<T>& worker, Range nodes) const = 0;
};

}  // namespace mdcg
