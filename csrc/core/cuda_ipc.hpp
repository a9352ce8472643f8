// Sharing of device memory between processes of one machine.
#pragma once

#include <cstdint>

#include "core/cuda_memory.hpp"

namespace mdcg {

// Handle with which another process opens the memory; plain bytes that can be sent.
struct SharedMemoryHandle {
    unsigned char driver[64] = {};  // CUipcMemHandle
    std::uint64_t offset = 0;       // in the driver's allocation
};

// Throws CudaError where the driver does not share memory. Others must have closed it before it is
// freed.
SharedMemoryHandle share(const CudaMemory& memory, int device);

// Another process's memory, for copies of `device`: over NVLink or PCIe if it is another device's.
class PeerMemory {
public:
    // Throws CudaError: the devices do not reach each other, or the memory does not exist.
    PeerMemory(int device, const SharedMemoryHandle& handle);
    ~PeerMemory();
    PeerMemory(const PeerMemory&) = delete;
    PeerMemory& operator=(const PeerMemory&) = delete;

    const char* data() const { return reinterpret_cast<const char*>(base_ + offset_); }

private:
    int device_;
    std::uint64_t base_ = 0, offset_;
};

}  // namespace mdcg
