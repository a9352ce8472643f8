// Runs a program: buffers, threads, forces.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "engine/model.hpp"
#include "engine/program.hpp"
#include "engine/simd.hpp"

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

private:
    void release();
    char* data_ = nullptr;
    std::size_t bytes_ = 0;
};

struct LayerTime {
    double forward = 0, backward = 0;  // milliseconds, mean of the threads
};

template <typename T>
class Executor {
public:
    explicit Executor(Program<T>& program) : program_(program) {}

    // Energies, and with `with_gradient` the gradients of edges, of the graph.
    void run(const Graph& graph, Communicator* communicator, bool with_gradient,
             double* descriptors, int threads);

    const std::vector<double>& energies() const { return energies_; }  // [num_local]
    // [num_nodes][3] forces and, where wanted, [num_nodes][9] halves of edge virials
    void assemble(const Graph& graph, double* forces, double* virials, int threads) const;

    const std::vector<LayerTime>& times() const { return times_; }
    std::size_t bytes() const;

private:
    void reserve(const Graph& graph, const BufferPlan& plan, int threads);
    void bind(const Graph& graph, const BufferPlan& plan);
    void run_stage(const Stage& stage, bool backward, const Graph& graph, double* descriptors,
                   int threads);
    void run_chunk(const Stage& stage, bool backward, Range range, Worker<T>& worker,
                   double* seconds);
    void copy_descriptors(const Stage& stage, Range range, const Worker<T>& worker,
                          const Graph& graph, double* descriptors) const;
    T* row_base(const Place& place, std::int64_t rows_local, std::int64_t rows_total,
                T* chunk) const;

    Program<T>& program_;
    const BufferPlan* plan_ = nullptr;
    Arena local_, total_;
    std::vector<Worker<T>> workers_;
    std::vector<AlignedArray<T>> chunks_;       // by thread
    std::vector<std::vector<double>> seconds_;  // by thread, by layer, forward and backward
    std::vector<double> energies_;
    std::vector<T> edge_gradient_;  // [num_edges][3]
    std::vector<LayerTime> times_;
};

extern template class Executor<float>;
extern template class Executor<double>;

}  // namespace mdcg
