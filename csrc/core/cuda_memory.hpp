// Memory, streams and captured graphs of one device, on top of the CUDA driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/cuda_driver.hpp"

namespace mdcg {

// A stream of a device; work of one evaluation is enqueued on one. On NO_DEVICE nothing happens
// here: no memory, no copies.
class CudaStream {
public:
    explicit CudaStream(int device);
    ~CudaStream();
    CudaStream(const CudaStream&) = delete;
    CudaStream& operator=(const CudaStream&) = delete;

    int device() const { return device_; }
    std::uintptr_t handle() const { return handle_; }
    void synchronize() const;

private:
    int device_;
    std::uintptr_t handle_ = 0;
};

// Bytes on a device, aligned to 256; contents are lost where it grows. Throws CudaError, with
// code CUDA_OUT_OF_MEMORY and a complete sentence where there are none.
class CudaMemory {
public:
    explicit CudaMemory(int device) : device_(device) {}
    ~CudaMemory();
    CudaMemory(CudaMemory&&) noexcept;
    CudaMemory& operator=(CudaMemory&&) noexcept;

    void reserve(std::size_t bytes);
    // As reserve, with room for an eighth more where it is not the first time and there is room.
    void grow(std::size_t bytes);
    void release() noexcept;
    std::size_t bytes() const { return bytes_; }
    void* data() const { return reinterpret_cast<void*>(address_); }
    template <typename N>
    N* as() const {
        return reinterpret_cast<N*>(address_);
    }

    // From and to the host, in the order of the stream; the host's bytes must stay until then.
    void upload(const void* source, std::size_t bytes, const CudaStream& stream);
    void download(void* target, std::size_t bytes, const CudaStream& stream) const;

private:
    int device_;
    std::uint64_t address_ = 0;
    std::size_t bytes_ = 0;
};

// Page-locked host memory, which the device copies from and to without a detour; contents are lost
// where it grows. Throws as CudaMemory does: ordinary memory in its place would be slow and say
// nothing.
class PinnedMemory {
public:
    explicit PinnedMemory(int device) : device_(device) {}
    ~PinnedMemory();
    PinnedMemory(const PinnedMemory&) = delete;
    PinnedMemory& operator=(const PinnedMemory&) = delete;

    void reserve(std::size_t bytes);
    void grow(std::size_t bytes);  // as CudaMemory::grow
    void release() noexcept;
    std::size_t bytes() const { return bytes_; }
    template <typename N>
    N* as() const {
        return static_cast<N*>(data_);
    }

private:
    int device_;
    void* data_ = nullptr;
    std::size_t bytes_ = 0;
};

// What was enqueued on a stream between begin and end, to be enqueued again as a whole. It may be
// captured anew: where that differs in addresses and sizes alone, what there is takes these over,
// which is many times faster than making it.
class CapturedGraph {
public:
    CapturedGraph() = default;
    ~CapturedGraph();
    CapturedGraph(const CapturedGraph&) = delete;
    CapturedGraph& operator=(const CapturedGraph&) = delete;

    void begin(const CudaStream& stream);
    void end(const CudaStream& stream);
    // Ends a capture that went wrong, so that the stream can be used again.
    void abandon(const CudaStream& stream) noexcept;
    void replay(const CudaStream& stream) const;
    void clear() noexcept;

private:
    int device_ = 0;
    void* executable_ = nullptr;
    bool begun_ = false;
};

// A moment on a stream.
class CudaEvent {
public:
    explicit CudaEvent(int device);
    ~CudaEvent();
    CudaEvent(const CudaEvent&) = delete;
    CudaEvent& operator=(const CudaEvent&) = delete;

    void record(const CudaStream& stream);
    // Milliseconds from another event to this one; both must have passed.
    double since(const CudaEvent& earlier) const;

private:
    int device_;
    void* event_ = nullptr;
};

// Enqueues; the first two inside a capture too. Host memory must stay until it is done.
void copy_on_device(void* target, const void* source, std::size_t bytes, const CudaStream& stream);
void clear_on_device(void* target, std::size_t bytes, const CudaStream& stream);
void copy_to_host(void* target, const void* source, std::size_t bytes, const CudaStream& stream);
void copy_to_device(void* target, const void* source, std::size_t bytes, const CudaStream& stream);

}  // namespace mdcg
