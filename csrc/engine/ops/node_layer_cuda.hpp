// What operations without edges share on devices.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/ops/cuda.hpp"
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

// A constant array on the device.
template <typename N>
class CudaArray {
public:
    void upload(const std::vector<N>& source, const DeviceStream& stream) {
        memory_ = std::make_shared<DeviceMemory>(stream.device());
        memory_->reserve(std::max<std::size_t>(1, source.size() * sizeof(N)));
        memory_->upload(source.data(), source.size() * sizeof(N), stream);
        stream.synchronize();
    }
    const N* data() const { return memory_->template as<N>(); }

private:
    std::shared_ptr<DeviceMemory> memory_;
};

}  // namespace mdcg
