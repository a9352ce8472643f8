// Convolutions that are sums by type (type_sums.hpp), on CPUs.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cpu_op.hpp"
#include "engine/edges/edge_block.hpp"
#include "engine/edges/radial_table.hpp"
#include "engine/graph.hpp"
#include "engine/ops/conv/conv.hpp"
#include "engine/ops/conv/type_sums.hpp"

namespace mdcg {

template <typename T>
class CpuTypeSums {
public:
    static bool possible(const ConvSpec& spec);

    // `spec` must stay.
    explicit CpuTypeSums(const ConvSpec& spec);
    // Of every list, by one thread. False: the list has nodes of too many types, or few edges.
    bool begin(const Graph& graph);

    // True if forward writes the rows of the linear operation after the convolution.
    bool composed() const { return matrices_.composed(); }
    // Writes rows `nodes`.
    void forward(Worker<T>& worker, Range nodes) const;
    // Adds to worker.edge_gradient of those nodes' edges.
    void backward(Worker<T>& worker, Range nodes) const;

private:
    // A block of the rows that are written, and its matrix [types, units][channels].
    struct Part {
        Block block;
        PackedMatrix<T> matrix, transposed;
    };
    struct Scratch {
        EdgeBlock<T> edges;
        std::int32_t* list;  // edges of a receiver, by type of the sender
        T *harmonics, *d_harmonics, *d_unit, *hidden, *d_hidden, *slope_row;
        T *basis, *slope, *rows, *d_rows, *packed, *sums;
        std::int64_t receivers;  // that `sums` has room for
        std::int32_t* knot;
        char* work;
        std::size_t bytes;
    };
    Scratch lay_out(char* start, std::int64_t longest) const;
    Scratch scratch_of(Worker<T>& worker, Range nodes) const;
    bool pays(const Graph& graph, std::int64_t types) const;
    int width() const { return (l_max_ + 1) * (l_max_ + 1); }
    std::int64_t depth() const { return static_cast<std::int64_t>(present_.size()) * stride_; }
    void sort_edges(const Worker<T>& worker, std::int64_t node, std::int32_t* list) const;
    // Harmonics and hidden units of a block of a receiver's edges; true: from the table.
    bool fill(const Worker<T>& worker, Scratch& s, std::int64_t first, std::int64_t count,
              bool backward) const;
    // body(first column of the sums, first edge, number of edges) for each type in a block.
    template <typename Body>
    void each_segment(const EdgeBlock<T>& edges, const Body& body) const;
    // Calls body(scratch, first receiver, number of receivers) for groups of receivers that fit
    // into `sums`, which is zeroed before each call.
    template <typename Body>
    void each_group(Worker<T>& worker, Range nodes, const Body& body) const;
    void add_sums(const Worker<T>& worker, Scratch& s, std::int64_t node, T* sums) const;
    void add_gradients(const Worker<T>& worker, Scratch& s, std::int64_t node, const T* sums) const;

    const ConvSpec& spec_;
    int l_max_;
    std::int64_t stride_;  // of rows of units
    TypeMatrices<T> matrices_;
    std::vector<T> factors_;
    Radial<T> radial_;
    std::unique_ptr<RadialTable<T>> table_;  // of units
    bool has_tables_ = false;                // for all pairs of types of the list
    std::vector<char> seen_, known_;         // of a list and of the matrices: types
    std::vector<std::int32_t> present_;      // the same types
    std::vector<std::int32_t> number_;       // of a type among them
    std::vector<Part> parts_;
};

}  // namespace mdcg
