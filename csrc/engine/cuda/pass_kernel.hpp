// Generated CUDA kernels: one pass of one layer, as "passes" of a kernel file describes it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/cuda/kernel_streams.hpp"
#include "engine/cuda/kernels.hpp"
#include "engine/op.hpp"
#include "engine/package/fields.hpp"

namespace mdcg {

// The arguments that kernels may ask for. row_ptr, out and g start with the first receiver of a
// launch; arrays indexed by edge start with edge 0 of the list.
enum class CudaArgument : int {
    order,        // [edges] row of y, w, dy, dw
    sender,       // [edges] row of x
    row_ptr,      // [receivers + 1] edges
    place,        // [edges] or [pairs]: row of dx
    types,        // [receivers]
    sender_type,  // [edges]
    active,       // [edges] edges (or pairs) shorter than r_max, first in each receiver (or group)
    num_active,   // [receivers], [groups]
    n_rows,       // receivers; or groups times n_parts
    n_types,      // sets of coefficients; types of atoms
    n_adds,       // not 0: add to dx
    n_parts,      // blocks that share the pairs of a group
    n_flip,       // not 0: unit vectors point from the receiver to the sender
    unit,         // [edges][3]
    length,       // [edges] Å
    places,       // places of a PolynomialTable
    table,
    x,
    y,
    w,
    g,
    out,
    dx,
    dy,
    dw,
    de,    // [streams][edges][3] gradients of the vectors, added to
    n_de,  // items of the gradients of a stream
    // For pairs, see DeviceEdges. With these, g and types begin with node 0.
    n_group,
    n_first,   // receiver
    n_local,   // receivers of the list
    receiver,  // [edges]
    node,      // [edges] sender
    one_way,
    own,  // [receivers][n_parts] rows of dx that blocks sum for their receivers
    xa,   // cotangents: only in operators of torch
    yb,
    wc,
    count
};

// Values by argument.
class CudaArguments {
public:
    void set(CudaArgument name, const void* address) {
        set(name, reinterpret_cast<std::int64_t>(address));
    }
    void set(CudaArgument name, std::int64_t value) {
        values_[static_cast<std::size_t>(name)] = value;
    }
    std::int64_t operator[](CudaArgument name) const {
        return values_[static_cast<std::size_t>(name)];
    }

private:
    std::array<std::int64_t, static_cast<std::size_t>(CudaArgument::count)> values_{};
};

class CudaPassKernel {
public:
    using Widths = std::vector<std::pair<const char*, std::int64_t>>;

    // `pass`: "forward", "backward", "table_forward" or "table_backward". `widths`: items of a row
    // of each operand, for which the kernels must have been made.
    CudaPassKernel(const OpSpec& layer, std::string pass, Widths widths);

    // Takes the programs for the device. Throws EngineError if there are none, if they are damaged,
    // or if the device is too old for all of them.
    void prepare(CudaKernels& kernels);

    // After `prepare`: degree of the polynomials of the table that it reads; 0: it reads none.
    int degree() const { return degree_; }
    int singles() const { return singles_; }  // coefficients in float32: see TABLE_SINGLES
    // After `prepare`: blocks that a multiprocessor holds, by an estimate that is the same on all
    // devices.
    int resident() const { return chosen_.resident; }

    // After `prepare`: whether an operand must be zero before the launch.
    bool zeroes(CudaArgument name) const;
    // Number of kernels.
    int count() const { return static_cast<int>(chosen_.entries.size()); }
    // Streams that the kernels may run on, at least 1. Kernels of different streams write to
    // different memory; `de` has a part for each stream.
    int streams() const;
    // Enqueues all kernels of the pass, one after the other.
    void launch(const DeviceStream& stream, const CudaArguments& arguments) const {
        launch([&](int) -> const DeviceStream& { return stream; }, arguments, 1);
    }
    // Launches each kernel on its stream, between a fork and a join of them. A block has
    // `warp_groups` groups of warps, or as many as its kernel may have, each with the threads and
    // memory of the entry.
    void launch(const KernelStreams& streams, const CudaArguments& arguments,
                int warp_groups = 1) const {
        launch([&](int stream) -> const DeviceStream& { return streams[stream]; }, arguments,
               warp_groups);
    }

private:
    struct Entry {
        std::string name;
        std::size_t program = 0;
        int threads = 0, shared_bytes = 0;  // per warp group
        int max_warp_groups = 1, stream = 0;
        std::int64_t rows = 1;
        CudaFunction function;
    };
    struct Variant {
        int capability = 0;  // at least
        int resident = 1;
        std::vector<std::string> programs;  // text_key
        std::vector<Entry> entries;
        std::vector<CudaArgument> arguments, zeroed;
        std::int64_t run = 1;
    };
    using StreamOf = std::function<const DeviceStream&(int stream)>;
    static Variant read(const Fields& fields);
    void launch(const StreamOf& stream_of, const CudaArguments& arguments, int warp_groups) const;
    int layer_;
    std::string where_, pass_;
    Widths widths_;
    int degree_ = 0, singles_ = 0;
    Variant chosen_;
};

}  // namespace mdcg
