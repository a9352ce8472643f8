// Memory, streams and captured graphs of one device, on top of the CUDA driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/cuda_driver.hpp"

namespace mdcg {

// A stream of a device; the work of one evaluation is enqueued on one stream. With NO_DEVICE, all
// operations do nothing.
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

// Bytes on a device, aligned to 256; growing loses the contents. Throws CudaError, if memory is
// short with code CUDA_OUT_OF_MEMORY and a complete sentence.
class CudaMemory {
public:
    explicit CudaMemory(int device) : device_(device) {}
    ~CudaMemory();
    CudaMemory(CudaMemory&&) noexcept;
    CudaMemory& operator=(CudaMemory&&) noexcept;

    void reserve(std::size_t bytes);
    // Like reserve; when it grows again, it adds an eighth if memory allows.
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

// Page-locked host memory, which the device copies from and to directly; growing loses the
// contents. Throws like CudaMemory and never falls back to ordinary memory, which would be silently
// slow.
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
// captured again: if only addresses and sizes differ, the existing graph is updated, which is many
// times faster than building a new one.
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

// A point in the work of a stream.
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
