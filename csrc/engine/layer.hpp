// Layers of a model and what they see of one evaluation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/rows.hpp"

namespace mdcg {

struct Graph;        // engine/graph.hpp: edges of this step, receiver-major and by sender block
class Communicator;  // engine/communicator.hpp
class KernelLoader;  // engine/kernels.hpp

struct Range {
    std::int64_t begin, end;
};

// A value that a layer reads or writes, as the program resolved it.
struct Operand {
    int id = -1;  // -1: absent
    Rows rows;
    bool needs_gradient = false;  // does it depend on positions
    bool accumulate = false;      // backward: add to its gradient (a layer before has written it)
    bool present() const { return id >= 0; }
};

// What one thread sees of one evaluation. Row n of a value starts at value(id) + n * width; the
// rows of other nodes than the present ones exist only for operands that a layer declared as
// gathered.
template <typename T>
class Worker {
public:
    const Graph* graph = nullptr;
    const std::int32_t* types = nullptr;  // [n_total]
    double* energies = nullptr;           // [n_local], added to
    T* edge_gradient = nullptr;           // [n_edges][3], dE/dvec
    bool with_gradient = false;           // is a backward pass wanted
    int thread = 0;
    Communicator* communicator = nullptr;  // of the host, or null

    T* value(const Operand& operand) const { return values[static_cast<std::size_t>(operand.id)]; }
    T* gradient(const Operand& operand) const {
        return gradients[static_cast<std::size_t>(operand.id)];
    }
    // At least `bytes` bytes of this thread, 64-byte aligned, until the next call; grows in
    // warm-up.
    char* scratch(std::size_t bytes);

    std::vector<T*> values, gradients;  // biased: index with absolute node numbers

private:
    std::vector<char> memory_;
};

// How a pass of a layer walks.
enum class Walk {
    nodes,          // the rows of a range of nodes, nothing else
    receivers,      // edges of a range of receivers; forward: inputs exist for all nodes
    sender_blocks,  // edges of the senders of one block of the graph, number begin /
                    // graph->nodes_per_block; backward: gradients of outputs exist for all nodes
    all,            // called once, with all local nodes, by one thread: an exchange
};

template <typename T>
class Layer {
public:
    virtual ~Layer() = default;

    virtual Walk forward_walk() const { return Walk::nodes; }
    virtual Walk backward_walk() const { return Walk::nodes; }
    // Ids of the operands whose values the backward pass reads (they are kept until then).
    virtual std::vector<int> kept() const = 0;
    virtual std::vector<Operand*> inputs() = 0;
    virtual std::vector<Operand*> outputs() = 0;
    // Of an edge layer: ids of the inputs that are read at senders, ghosts included.
    virtual std::vector<int> gathered() {
        std::vector<int> ids;
        if (forward_walk() == Walk::receivers)
            for (const Operand* input : inputs()) ids.push_back(input->id);
        return ids;
    }

    // Takes generated kernels where there are any; once, before the first evaluation.
    virtual void prepare(KernelLoader&) {}
    // Once per evaluation, by one thread, after the graph is made and before the forward pass:
    // builds what is new (tables of pairs of types that occur for the first time).
    virtual void begin(const Graph&) {}

    // Writes the rows `nodes` of its outputs.
    virtual void forward(Worker<T>& worker, Range nodes) const = 0;
    // Given gradients of its outputs, writes (or adds to, see Operand) those of its inputs that
    // need one, for the rows `nodes`; edge layers add to worker.edge_gradient.
    virtual void backward(Worker<T>& worker, Range nodes) const = 0;

    std::string name;  // type and number, for reports and errors
};

}  // namespace mdcg
