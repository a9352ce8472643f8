// Sums by type (type_sums.hpp) on CPUs.
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

    // `spec` must outlive this object.
    explicit CpuTypeSums(const ConvSpec& spec);
    // Takes the tensors of the specification, which may have changed.
    void load_tensors() {
        matrices_.load_tensors();
        known_.clear();
    }
    // To be called for every list, by one thread. Returns false if sums by type do not pay: nodes
    // have too many types, or there are few edges.
    bool begin(const Graph& graph);

    // True if forward writes the rows of the linear operation after the convolution.
    bool composed() const { return matrices_.composed(); }
    // Writes rows `nodes`.
    void forward(Worker<T>& worker, Range nodes) const;
    // Adds to worker.edge_gradient, for the edges of these nodes.
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
        std::int64_t receivers;  // for which `sums` has room
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
    // Computes harmonics and hidden units of a block of a receiver's edges. Returns whether units
    // come from the table.
    bool fill(const Worker<T>& worker, Scratch& s, std::int64_t first, std::int64_t count,
              bool backward) const;
    // Calls body(first column of the sums, first edge, number of edges) for each type in a block.
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
    std::int64_t stride_;  // items of a row of units
    TypeMatrices<T> matrices_;
    std::vector<T> factors_;
    Radial<T> radial_;
    std::unique_ptr<RadialTable<T>> table_;  // tabulated units
    bool has_tables_ = false;                // for all pairs of types of the list
    std::vector<char> seen_, known_;         // [T] types in the list; types that parts_ are for
    std::vector<std::int32_t> present_;      // numbers of the types that parts_ are for
    std::vector<std::int32_t> number_;       // [T] position of a type in present_, or -1
    std::vector<Part> parts_;
};

}  // namespace mdcg
