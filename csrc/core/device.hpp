// Devices: memory, streams, captured graphs, kernels and handles between processes. This is the
// only interface to a vendor's driver; cuda_device.cpp and cuda_memory.cpp implement it for CUDA
// and for AMD's HIP, whose functions have the same shape.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace mdcg {

// No device: the kernels of a package are only listed.
constexpr int NO_DEVICE = -1;
// Number of device "hip:0". Devices of NVIDIA begin with 0, "cuda:0".
constexpr int FIRST_HIP_DEVICE = 1 << 16;

enum class Vendor { nvidia, amd };
inline Vendor vendor_of(int device) {
    return device >= FIRST_HIP_DEVICE ? Vendor::amd : Vendor::nvidia;
}
std::string device_label(int device);  // "cuda:0", "hip:0"

// An error of the driver.
class DeviceError : public std::runtime_error {
public:
    enum Kind {
        other,
        out_of_memory,
        no_device,
        forked,              // the process was forked from one that used the device
        too_many_resources,  // a kernel needs more registers or memory than there are
        unusable_code,       // the device cannot load the machine code, or a kernel is missing
        lost,                // every later call on the device fails too
    };
    // `complete`: the text also says what to do.
    DeviceError(Kind kind, int code, const std::string& text, bool complete = false)
        : std::runtime_error(text), kind_(kind), code_(code), complete_(complete) {}
    Kind kind() const { return kind_; }
    int code() const { return code_; }  // the driver's own number
    bool complete() const { return complete_; }

private:
    Kind kind_;
    int code_;
    bool complete_;
};

// These throw std::runtime_error if there is no driver, and DeviceError if it fails.
int device_count(Vendor vendor);
std::string device_name(int device);
int device_multiprocessors(int device);
// 10 * major + minor; of AMD's devices, the hexadecimal number in gfx90a, which is always larger.
int compute_capability(int device);
constexpr int FIRST_GFX = 0x700;
inline bool is_gfx(int capability) { return capability >= FIRST_GFX; }
std::string target_name(int capability);  // "sm_90", "gfx90a"
struct BytesOfDevice {
    std::size_t free = 0, total = 0;
};
BytesOfDevice device_memory(int device);
// The same for one device in all processes. Some cards of AMD have no serial number: theirs may be
// that of another.
std::array<unsigned char, 16> device_uuid(int device);
// The version of CUDA that the driver is made for, or that of HIP: 1000 * major + 10 * minor.
int driver_version(Vendor vendor);
std::string driver_version_text(Vendor vendor);  // "CUDA 12.4", "HIP 6.2"
// The same without an error, 0 if there is no driver. This does not start NVIDIA's driver; HIP's
// starts at every call.
int available_driver_version(Vendor vendor);

// A stream of a device: work that is enqueued on it runs in order. With NO_DEVICE, all operations
// do nothing.
class DeviceStream {
public:
    explicit DeviceStream(int device);
    ~DeviceStream();
    DeviceStream(const DeviceStream&) = delete;
    DeviceStream& operator=(const DeviceStream&) = delete;

    int device() const { return device_; }
    std::uintptr_t handle() const { return handle_; }
    void synchronize() const;

private:
    int device_;
    std::uintptr_t handle_ = 0;
};

constexpr std::size_t DEVICE_ALIGNMENT = 256;  // bytes

// Aligned memory on a device; growing loses the contents. Throws DeviceError. If memory runs out,
// its kind is out_of_memory and its sentence is complete.
class DeviceMemory {
public:
    explicit DeviceMemory(int device) : device_(device) {}
    ~DeviceMemory();
    DeviceMemory(DeviceMemory&&) noexcept;
    DeviceMemory& operator=(DeviceMemory&&) noexcept;

    void reserve(std::size_t bytes);
    // Like reserve, with room to grow: a 64th more at first and an eighth later, at most `spare`
    // bytes, and none if memory is short.
    void grow(std::size_t bytes, std::size_t spare = std::numeric_limits<std::size_t>::max());
    void release() noexcept;
    std::size_t bytes() const { return bytes_; }
    void* data() const { return reinterpret_cast<void*>(address_); }
    template <typename N>
    N* as() const {
        return reinterpret_cast<N*>(address_);
    }

    // Enqueues a copy from the host, whose bytes must stay until the copy is done.
    void upload(const void* source, std::size_t bytes, const DeviceStream& stream);

private:
    int device_;
    std::uint64_t address_ = 0;
    std::size_t bytes_ = 0;
};

// Constant numbers on a device.
template <typename N>
class DeviceArray {
public:
    // Waits until the copy is done. Growing changes the address.
    void upload(const N* source, std::size_t count, const DeviceStream& stream) {
        if (!memory_) memory_ = std::make_unique<DeviceMemory>(stream.device());
        memory_->reserve(count > 0 ? count * sizeof(N) : 1);
        memory_->upload(source, count * sizeof(N), stream);
        stream.synchronize();
    }
    void upload(const std::vector<N>& source, const DeviceStream& stream) {
        upload(source.data(), source.size(), stream);
    }
    N* data() const { return memory_ ? memory_->as<N>() : nullptr; }  // null: none
    std::size_t bytes() const { return memory_ ? memory_->bytes() : 0; }

private:
    std::unique_ptr<DeviceMemory> memory_;
};

// Page-locked host memory, which kernels and copies of the device reach directly; growing loses the
// contents. Throws like DeviceMemory and never falls back to ordinary memory, which would be
// silently slow.
class PinnedMemory {
public:
    explicit PinnedMemory(int device) : device_(device) {}
    ~PinnedMemory();
    PinnedMemory(const PinnedMemory&) = delete;
    PinnedMemory& operator=(const PinnedMemory&) = delete;

    void reserve(std::size_t bytes);
    void grow(std::size_t bytes);  // like DeviceMemory::grow
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

// The work that was enqueued on a stream between begin and end, to be enqueued again as a whole. It
// may be captured again: if only addresses and sizes differ, the existing graph is updated, which
// is many times faster than building a new one. With HIP, a new one is built.
class CapturedGraph {
public:
    CapturedGraph() = default;
    ~CapturedGraph();
    CapturedGraph(const CapturedGraph&) = delete;
    CapturedGraph& operator=(const CapturedGraph&) = delete;

    void begin(const DeviceStream& stream);
    void end(const DeviceStream& stream);
    // Ends a capture that went wrong, so that the stream can be used again.
    void abandon(const DeviceStream& stream) noexcept;
    void replay(const DeviceStream& stream) const;
    void clear() noexcept;

private:
    int device_ = 0;
    void* executable_ = nullptr;
    bool begun_ = false;
};

// A point in the work of a stream. With NO_DEVICE, it cannot be recorded.
class DeviceEvent {
public:
    explicit DeviceEvent(int device);
    ~DeviceEvent();
    DeviceEvent(const DeviceEvent&) = delete;
    DeviceEvent& operator=(const DeviceEvent&) = delete;

    void record(const DeviceStream& stream);
    // Work that is enqueued on the stream from now on runs after this event.
    void wait(const DeviceStream& stream) const;
    // Milliseconds from another event to this one; both must have passed.
    double since(const DeviceEvent& earlier) const;

private:
    int device_;
    void* event_ = nullptr;
};

// These enqueue a copy. Host memory must stay until the copy is done, or until the last replay of a
// captured copy. Inside a capture it must be page-locked.
void copy_on_device(void* target, const void* source, std::size_t bytes,
                    const DeviceStream& stream);
void clear_on_device(void* target, std::size_t bytes, const DeviceStream& stream);
void copy_to_host(void* target, const void* source, std::size_t bytes, const DeviceStream& stream);
void copy_to_device(void* target, const void* source, std::size_t bytes,
                    const DeviceStream& stream);

// Handle by which another process opens device memory; plain bytes that can be sent.
struct SharedMemoryHandle {
    unsigned char driver[64] = {};
    std::uint64_t offset = 0;  // in the driver's allocation
};

// Throws DeviceError if the driver does not share memory. Other processes must have closed the
// memory before it is freed.
SharedMemoryHandle share(const DeviceMemory& memory, int device);

// Memory of another process, for copies by `device`. Memory of another device is reached over
// NVLink or PCIe.
class PeerMemory {
public:
    // Throws DeviceError: the devices do not reach each other, or the memory does not exist.
    PeerMemory(int device, const SharedMemoryHandle& handle);
    ~PeerMemory();
    PeerMemory(const PeerMemory&) = delete;
    PeerMemory& operator=(const PeerMemory&) = delete;

    const char* data() const { return reinterpret_cast<const char*>(base_ + offset_); }

private:
    int device_;
    std::uint64_t base_ = 0, offset_;
};

// Enqueues a kernel whose only parameter is the struct at `arguments`. An `early` kernel may start
// once all blocks of the previous kernel allow it, if the driver supports that. `what` is for
// errors. Throws DeviceError, also if a grid cannot have so many blocks.
void launch_kernel(int device, std::uintptr_t function, std::int64_t blocks, int threads,
                   int shared_bytes, std::uintptr_t stream, const void* arguments, bool early,
                   const char* what);

// Machine code loaded on one device.
class DeviceModule {
public:
    DeviceModule(int device, const std::string& code);
    ~DeviceModule();
    DeviceModule(const DeviceModule&) = delete;
    DeviceModule& operator=(const DeviceModule&) = delete;

    // Address of a kernel, allowed to use that many bytes of dynamic shared memory.
    std::uintptr_t function(const std::string& name, int shared_bytes) const;

    // Registers per thread, bytes of local memory per thread, bytes of static shared memory.
    std::array<int, 3> resources(std::uintptr_t function) const;

    // launch_kernel() with a struct of 64-bit values.
    void launch(std::uintptr_t function, std::int64_t blocks, int threads, int shared_bytes,
                std::uintptr_t stream, const std::vector<std::int64_t>& arguments,
                bool early) const;

private:
    int device_;
    void* module_ = nullptr;
};

}  // namespace mdcg
