// Macros for kernels/radial_network.cuh, and the numbers that it reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/edges/radial.hpp"

namespace mdcg {

template <typename T>
struct RadialText {
    // Throws EngineError (ErrorKind::unsupported) if a layer is too wide for a multiprocessor.
    explicit RadialText(const RadialSpec& spec);

    std::string defines;
    std::vector<T> weights;       // all layers, in T
    std::vector<double> numbers;  // numbers of the basis, r_max, r_0
    int edges = 0;                // edges per tile, which is a block
    int threads = 0;
    int shared_bytes = 0;            // dynamic
    int block_bytes = 0;             // of shared memory, with that of the kernel
    std::int64_t kept_items = 0;     // items per tile for the backward pass
    std::int64_t hidden_stride = 0;  // items of a row of hidden
    std::int64_t first_stride = 0;   // padded width of the first layer's preactivations
    bool sender_rows = false, receiver_rows = false;  // rows of nodes are added
};

}  // namespace mdcg
