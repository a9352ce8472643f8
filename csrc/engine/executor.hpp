// Runs a program on a CPU: its buffers, its threads, and the forces.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "engine/backend/cpu/simd.hpp"
#include "engine/cpu_op.hpp"
#include "engine/model.hpp"
#include "engine/program.hpp"

namespace mdcg {

// A buffer in large pages, which is kept until more memory is needed.
class Arena {
public:
    Arena() = default;
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    ~Arena();
    // Returns at least `bytes`; contents are lost if the buffer grows. Throws std::bad_alloc.
    char* reserve(std::size_t bytes);
    char* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }
    void release();

private:
    char* data_ = nullptr;
    std::size_t bytes_ = 0;
    bool mapped_ = false;  // by mmap, otherwise allocated by malloc
};

// The part that executors of CPUs and devices share: operations, addresses of rows, and times.
template <typename T, typename Op>
class ExecutorOf {
public:
    const std::vector<LayerTime>& times() const { return times_; }  // [num_ops]

protected:
    ExecutorOf(const Program& program, std::vector<std::unique_ptr<Op>> ops)
        : program_(program), ops_(std::move(ops)) {}

    // Sets the first rows of values and gradients. They are null for slots of kind `chunk` if
    // Arenas::chunk is null.
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
    // Runs one operation of a stage for the given nodes, as far as the operation applies to them.
    template <typename OpWorker, typename Edges>
    void run_op(const Stage& stage, int number, bool backward, OpWorker& worker, Range nodes,
                const Edges& edges) const {
        const OpSpec& spec = *program_.ops[static_cast<std::size_t>(number)];
        const IterationSpace space = backward ? spec.backward_space() : spec.forward_space;
        nodes.end = std::min(nodes.end, stage.rows(space, edges.num_local, edges.num_nodes));
        // an exchange is collective, so it also runs on ranks without nodes
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

    // Lets operations load their generated kernels.
    void prepare(KernelStore& kernels) {
        for (const auto& op : ops_) op->prepare(kernels);
    }

    // Lets operations take tensors that have changed with inputs of the system.
    void reload_tensors() {
        for (std::size_t i = 0; i < ops_.size(); ++i)
            if (program_.ops[i]->depends_on_inputs) ops_[i]->on_new_inputs();
    }

    // Computes energies and, with `with_gradient`, the gradients of edge vectors. Programs
    // that read points read `points`; of `system`, cell and weights of energies are read;
    // `descriptors`: [num_local][descriptor_width] or null.
    void run(const Graph& graph, const Points* points, const System& system,
             Communicator* communicator, bool with_gradient, double* descriptors, int threads);

    const std::vector<double>& energies() const { return energies_; }  // [num_local]
    // [3][3] The virial that operations on the system have added, which is not in assemble()'s.
    const std::array<double, 9>& system_virial() const { return system_virial_; }
    // Computes forces [num_nodes][3] and virials [num_nodes][9] from the gradients of edges. Each
    // atom of an edge gets half of its virial. Null: not wanted.
    void assemble(const Graph& graph, double* forces, double* virials, int threads) const;

    std::size_t bytes() const;
    // Frees all buffers.
    void release();

private:
    void reserve(const Graph& graph, const BufferPlan& plan, int threads);
    void bind_workers(const Graph& graph, const BufferPlan& plan);
    void run_stage(const Stage& stage, bool backward, const Graph& graph, double* descriptors,
                   int threads);
    void run_chunk(const Stage& stage, bool backward, Range range, Worker<T>& worker,
                   double* seconds);
    void add_own_forces(std::int64_t node, std::int64_t to, double* forces, double* virials) const;
    void copy_descriptors(const Stage& stage, Range range, const Worker<T>& worker,
                          const Graph& graph, double* descriptors) const;

    using ExecutorOf<T, CpuOp<T>>::program_;
    using ExecutorOf<T, CpuOp<T>>::ops_;
    using ExecutorOf<T, CpuOp<T>>::times_;
    const BufferPlan* plan_ = nullptr;
    Arena local_, total_;
    std::vector<Worker<T>> workers_;
    std::vector<AlignedArray<T>> chunks_;            // [threads]
    std::vector<std::vector<double>> seconds_;       // [threads][num_ops][2], forward and backward
    std::vector<double> energies_, energy_weights_;  // [num_local]
    std::vector<T> edge_gradient_;                   // [num_edges][3]
    // Results of operations on points or the system: [num_local][3]; and of those on points:
    // [num_local][6] as xx yy zz xy xz yz.
    std::vector<double> own_forces_, point_virials_;
    std::array<double, 9> system_virial_{};
};

}  // namespace mdcg
