// Operations of a network: what each one declares, and which back ends run it.
//
// A specification is read from its entry of "layers" and checked once, whatever runs it later; the
// program (program.hpp) is planned from specifications alone. Implementations for CPUs
// (cpu_op.hpp) and devices (cuda/cuda_op.hpp) are made from a specification and only run it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "engine/package/fields.hpp"
#include "engine/rows.hpp"

namespace mdcg {

// A value that an operation reads or writes.
struct Operand {
    int id = -1;  // -1: absent
    Rows rows;
    bool saved_for_backward = false;  // the backward pass reads the value
    bool gathered = false;            // read at senders, ghosts included
    // The backward pass gives local nodes their whole gradient, and ghosts none.
    bool whole_gradient = false;
    // Inputs: on devices the backward pass reads each item of the value before it writes the same
    // item of the gradient, and does not read it again. So the gradient may replace the value.
    bool gradient_in_place = false;
    // Set by the program:
    bool needs_gradient = false;  // the value depends on positions
    // Inputs: the backward pass adds to the rows of the gradient, which an earlier operation has
    // written. It always adds to rows of ghosts: the executor zeroes them before the first
    // operation that adds. Outputs: the forward pass adds to the rows, which an earlier operation
    // has written.
    bool accumulate = false;
    bool present() const { return id >= 0; }
};

// What a pass of an operation iterates over.
enum class IterationSpace {
    nodes,          // the rows of a range of nodes
    receivers,      // edges of a range of receivers; forward: inputs exist for all nodes
    sender_blocks,  // edges of the senders of block number begin / graph->nodes_per_block;
                    // backward: gradients of outputs exist for all nodes
    all_edges,      // backward: both ends get gradients; one call for all local nodes
    exchange,       // rows of ghosts: one call for all local nodes, on all ranks together
    points,         // atoms within a long cutoff, without edges: one call for all local nodes
    system,         // positions and the cell: one call for all local nodes, on all ranks together
};
// Whether all nodes are passed to one call, which may share them among threads itself.
inline bool is_single_call(IterationSpace space) { return space >= IterationSpace::all_edges; }

// One entry of "layers", with the values that it may name.
struct LayerEntry {
    Fields fields;
    const ModelInfo& info;
    const std::map<std::string, Operand>& values;
    int index = 0;  // index of the entry

    // The value that a field names. Throws EngineError.
    Operand operand(const Fields& from, const char* key) const {
        return operand(from, key, from.text(key));
    }
    Operand operand(const Fields& from, const char* key, const std::string& name) const;
};

// The size of an operation that has a generated kernel.
struct KernelSize {
    std::int64_t terms = 0;  // entries of 3j symbols, or products of polynomials
    std::int64_t text = 0;   // about the characters of the kernel for CPUs; GPUs need more
    std::string key;         // operations with equal keys share kernels
};

// The checked declaration of one operation. Throws EngineError that names layer and field.
class OpSpec {
public:
    explicit OpSpec(const LayerEntry& entry);
    OpSpec(const OpSpec&) = delete;
    OpSpec& operator=(const OpSpec&) = delete;
    virtual ~OpSpec() = default;

    // Called once it is known which values have gradients.
    virtual IterationSpace backward_space() const { return forward_space; }
    // Whether it adds to the energy instead of writing a value.
    bool gives_energy() const {
        return outputs.empty() && forward_space != IterationSpace::exchange;
    }
    bool reads_points() const { return forward_space == IterationSpace::points; }
    bool reads_system() const { return forward_space == IterationSpace::system; }
    // Whether it reads positions itself.
    bool reads_positions() const {
        return forward_space == IterationSpace::receivers || reads_points() || reads_system();
    }

    virtual KernelSize kernel_size() const { return {}; }

    Fields fields;
    std::string type, name;  // the name is for reports and errors
    int index;               // index of its entry in "layers"
    int num_types;
    int align;  // items that 64 bytes hold
    bool flip_edges;
    IterationSpace forward_space = IterationSpace::nodes;
    bool is_sum = false;                  // its output is the sum of its inputs
    bool joins_systems = true;            // on devices a call may be for all systems of a batch
    bool can_add = false;                 // it heeds Operand::accumulate of its single output
    std::deque<Operand> inputs, outputs;  // a deque, so that addresses of operands stay valid
    // Tensors that may depend on inputs of the system. If one does (`depends_on_inputs`), the
    // operation reads them again when the inputs have changed.
    std::vector<const Tensor*> input_tensors;
    bool depends_on_inputs = false;
    // The next operation, if it is the only reader of this one's single output; set for operations
    // without inputs. This operation may then write the next one's result and read its gradient:
    // the buffer plan keeps both for it.
    const OpSpec* only_reader = nullptr;

protected:
    enum Use { plain, saved_for_backward };
    Operand& input(const char* key, Use use = plain) { return input(fields, key, use); }
    Operand& input(const Fields& from, const char* key, Use use = plain);
    Operand& output(const char* key);

    void expect_same_irreps(const Operand& x, const Operand& out) const;
    // Checks that the problem of a generated kernel has the dtype of the package.
    void expect_same_dtype(const Fields& problem) const;
    // The number of a block of an operand, as a field gives it.
    static std::size_t block_index(const Fields& from, const char* key, const Operand& operand);
    // The place of an input among the numbers that StepRows::inputs has. Throws EngineError if the
    // package has no such input.
    std::size_t input_number(const std::string& name) const;
    // A tensor of one number, or of one number for each type.
    const Tensor& one_or_by_type(const char* key, Content content = Content::weights) const;

    const LayerEntry& entry;  // inside constructors only
    Operand absent;
};

// Irreps that a field holds; throws EngineError.
Rows read_rows(const Fields& fields, const char* key, int align);
bool same_irreps(const Rows& a, const Rows& b);
std::string block_text(const Block& block);  // "64x1o"
std::string irreps_text(const Rows& rows);   // "64x0e+64x1o"

// -- registry ------------------------------------------------------------------------------------

template <typename T>
class CpuOp;  // engine/cpu_op.hpp
template <typename T>
class CudaOp;  // engine/cuda/cuda_op.hpp

template <typename Op>
using MakeOp = std::unique_ptr<Op> (*)(const OpSpec&);

// One type of operation; null: not registered.
struct OpType {
    std::unique_ptr<OpSpec> (*read)(const LayerEntry&) = nullptr;
    std::tuple<MakeOp<CpuOp<float>>, MakeOp<CpuOp<double>>, MakeOp<CudaOp<float>>,
               MakeOp<CudaOp<double>>>
        make;
};
std::map<std::string, OpType>& op_types();

// Registers implementations of an operation, and how its specification is read:
//     const RegisterOp<LinearSpec, CpuLinear, CudaLinear> registered{"linear"};
template <typename Spec, template <typename> class... Ops>
struct RegisterOp {
    explicit RegisterOp(const char* type) {
        OpType& known = op_types()[type];
        known.read = [](const LayerEntry& entry) -> std::unique_ptr<OpSpec> {
            return std::make_unique<Spec>(entry);
        };
        (add<Ops<float>>(known), ...);
        (add<Ops<double>>(known), ...);
    }

private:
    template <typename Op>
    static void add(OpType& type) {
        using Base = typename Op::Base;
        std::get<MakeOp<Base>>(type.make) = [](const OpSpec& spec) -> std::unique_ptr<Base> {
            return std::make_unique<Op>(static_cast<const Spec&>(spec));
        };
    }
};

}  // namespace mdcg
