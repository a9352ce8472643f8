// What operations without edges share on devices.
#pragma once

#include <cstdint>

#include "engine/cuda/cuda_op.hpp"
#include "kernels/nodes.hpp"

namespace mdcg {

// The program of all their kernels.
constexpr const char* NODE_KERNELS = "nodes.cuh";
// Threads of a block in all of them.
constexpr int NODE_THREADS = 256;

// Blocks for so many threads, or for so many warps.
inline std::int64_t thread_blocks(std::int64_t threads) {
    return (threads + NODE_THREADS - 1) / NODE_THREADS;
}
inline std::int64_t warp_blocks(std::int64_t warps) { return thread_blocks(32 * warps); }

// Items of 16 bytes.
template <typename T>
constexpr std::int64_t pack_items() {
    return static_cast<std::int64_t>(16 / sizeof(T));
}

}  // namespace mdcg
