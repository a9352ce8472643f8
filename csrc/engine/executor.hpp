// Runs a program: buffers, threads, forces.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "engine/backend/cpu/simd.hpp"
#include "engine/model.hpp"
#include "engine/ops/cpu.hpp"
#include "engine/program.hpp"

namespace mdcg {

// Memory from the system in large pages, kept until more is wanted.
class Arena {
public:
    Arena() = default;
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    ~Arena();
    // At least `bytes`; contents are lost where it grows. Throws std::bad_alloc.
    char* reserve(std::size_t bytes);
    char* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }
    void release();

private:
    char* data_ = nullptr;
    std::size_t bytes_ = 0;
    bool mapped_ = false;  // otherwise of malloc
};

// What executors of CPUs and devices share: the operations, where their rows stand, and times.
template <typename T, typename Op>
class ExecutorOf {
public:
    const std::vector<LayerTime>& times() const { return times_; }  // by operation

protected:
    ExecutorOf(const Program& program, std::vector<std::unique_ptr<Op>> ops)
        : program_(program), ops_(std::move(ops)) {}

    // First rows of values and gradients in arenas for so many nodes; without `chunk`, null for
    // those of chunks.
    struct Arenas {
        T *local, *total, *chunk;
        std::int64_t num_local, num_nodes;
    };
    static void bind(const BufferPlan& plan, const Arenas& arenas, StepRows<T>& rows) {
        const auto place = [&](const std::vector<BufferSlot>& slots, std::vector<T*>& first) {
            first.assign(slots.size(), nullptr);
            for (std::size_t id = 0; id < slots.size(); ++id) {
                const std::int64_t offset = slots[id].offset;
                if (slots[id].kind == BufferSlot::local)
                    first[id] = arenas.local + offset * arenas.num_local;
                if (slots[id].kind == BufferSlot::total)
                    first[id] = arenas.total + offset * arenas.num_nodes;
                if (slots[id].kind == BufferSlot::chunk && arenas.chunk != nullptr)
                    first[id] = arenas.chunk + offset * arenas.num_nodes;
            }
        };
        place(plan.values, rows.values);
        place(plan.gradients, rows.gradients);
    }
    // Runs one operation of a stage, for those of the nodes that it is for.
    template <typename OpWorker, typename Edges>
    void run_op(const Stage& stage, int number, bool backward, OpWorker& worker, Range nodes,
                const Edges& edges) const {
        const OpSpec& spec = *program_.ops[static_cast<std::size_t>(number)];
        const IterationSpace space = backward ? spec.backward_space() : spec.forward_space;
        nodes.end = std::min(nodes.end, stage.rows(space, edges.num_local, edges.num_nodes));
        // an exchange is collective: also where a rank has no nodes
        if (nodes.begin >= nodes.end && space < IterationSpace::exchange) return;
        if (number > 0 && ops_[static_cast<std::size_t>(number - 1)]->fuses_next_op(worker)) return;
        const Op& op = *ops_[static_cast<std::size_t>(number)];
        backward ? op.backward(worker, nodes) : op.forward(worker, nodes);
    }

    const Program& program_;
    std::vector<std::unique_ptr<Op>> ops_;
    std::vector<LayerTime> times_;
};

template <typename T>
class Executor : public ExecutorOf<T, CpuOp<T>> {
public:
    Executor(const Program& program, const Package& package)
        : ExecutorOf<T, CpuOp<T>>(program, program.implement<CpuOp<T>>(package, "cpu")) {}

    // Takes generated kernels.
    void prepare(KernelStore& kernels) {
        for (const auto& op : ops_) op->prepare(kernels);
    }

    // Energies, and with `with_gradient` the gradients of edges, of the graph; `points` where the
    // program reads them, and `energy_weights` as of System.
    void run(const Graph& graph, const Points* points, Communicator* communicator,
             bool with_gradient, const double* energy_weights, double* descriptors, int threads);

    const std::vector<double>& energies() const { return energies_; }  // [num_local]
    // [num_nodes][3] forces and, where wanted, [num_nodes][9] halves of edge virials
    void assemble(const Graph& graph, double* forces, double* virials, int threads) const;

    std::size_t bytes() const;
    // Gives all buffers back.
    void release();

private:
    void reserve(const Graph& graph, const BufferPlan& plan, int threads);
    void bind_workers(const Graph& graph, const BufferPlan& plan);
    void run_stage(const Stage& stage, bool backward, const Graph& graph, double* descriptors,
                   int threads);
    void run_chunk(const Stage& stage, bool backward, Range range, Worker<T>& worker,
                   double* seconds);
    void add_of_points(std::int64_t node, std::int64_t to, double* forces, double* virials) const;
    void copy_descriptors(const Stage& stage, Range range, const Worker<T>& worker,
                          const Graph& graph, double* descriptors) const;

    using ExecutorOf<T, CpuOp<T>>::program_;
    using ExecutorOf<T, CpuOp<T>>::ops_;
    using ExecutorOf<T, CpuOp<T>>::times_;
    const BufferPlan* plan_ = nullptr;
    Arena local_, total_;
    std::vector<Worker<T>> workers_;
    std::vector<AlignedArray<T>> chunks_;       // by thread
    std::vector<std::vector<double>> seconds_;  // by thread, by operation, forward and backward
    std::vector<double> energies_, energy_weights_;
    std::vector<T> edge_gradient_;  // [num_edges][3]
    // Of operations on points; see Worker.
    std::vector<double> point_forces_, point_virials_;
};

}  // namespace mdcg
