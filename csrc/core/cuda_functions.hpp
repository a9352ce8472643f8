// The functions of the CUDA driver that mdcg calls. The driver is opened, and a function looked up,
// at its first call. Only the implementation of device.hpp includes this file.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>

namespace mdcg::cuda {

// These start the driver. They throw std::runtime_error if there is none, and DeviceError if it
// fails.
void* find_function(const char* name);  // null: the driver is too old
void* need_function(const char* name);  // throws DeviceError if the driver is too old
[[noreturn]] void refuse_without(const char* name);
void check(int status, const char* what);

template <typename... Arguments>
class Function {
public:
    constexpr explicit Function(const char* name) : name_(name) {}

    // Throws DeviceError if the driver has no such function or refuses the call.
    void operator()(Arguments... arguments) const { check(status(arguments...), name_); }
    int status(Arguments... arguments) const { return address()(arguments...); }
    bool available() const { return find_function(name_) != nullptr; }
    void need() const { address(); }

private:
    using Pointer = int (*)(Arguments...);
    Pointer address() const {
        Pointer found = pointer_.load(std::memory_order_acquire);
        if (found == nullptr) {
            found = reinterpret_cast<Pointer>(need_function(name_));
            pointer_.store(found, std::memory_order_release);
        }
        return found;
    }

    const char* name_;
    mutable std::atomic<Pointer> pointer_{nullptr};
};

// Types of cuda.h
using Size = std::size_t;
using Address = std::uint64_t;

struct LaunchAttribute {  // allows programmatic stream serialization
    alignas(8) int id = 6;
    char padding[4] = {};
    int allowed = 1;
    char rest[60] = {};
};
static_assert(sizeof(LaunchAttribute) == 72, "as in cuda.h");

struct LaunchConfig {
    unsigned blocks = 1, blocks_y = 1, blocks_z = 1;
    unsigned threads = 1, threads_y = 1, threads_z = 1;
    unsigned shared_bytes = 0;
    void* stream = nullptr;
    LaunchAttribute* attributes = nullptr;
    unsigned num_attributes = 1;
};

struct UpdateResult {
    int result = 0;
    void *to = nullptr, *from = nullptr;
};

struct MemoryHandle {
    unsigned char bytes[64];
};

// Devices and contexts
inline const Function<int*> cuDriverGetVersion("cuDriverGetVersion");
inline const Function<int*> cuDeviceGetCount("cuDeviceGetCount");
inline const Function<int*, int> cuDeviceGet("cuDeviceGet");
inline const Function<char*, int, int> cuDeviceGetName("cuDeviceGetName");
inline const Function<unsigned char*, int> cuDeviceGetUuid("cuDeviceGetUuid_v2");
inline const Function<int*, int, int> cuDeviceGetAttribute("cuDeviceGetAttribute");
inline const Function<void**, int> cuDevicePrimaryCtxRetain("cuDevicePrimaryCtxRetain");
inline const Function<void*> cuCtxPushCurrent("cuCtxPushCurrent_v2");
inline const Function<void**> cuCtxPopCurrent("cuCtxPopCurrent_v2");
// Memory
inline const Function<Size*, Size*> cuMemGetInfo("cuMemGetInfo_v2");
inline const Function<Address*, Size> cuMemAlloc("cuMemAlloc_v2");
inline const Function<Address> cuMemFree("cuMemFree_v2");
inline const Function<void**, Size, unsigned> cuMemHostAlloc("cuMemHostAlloc");
inline const Function<void*> cuMemFreeHost("cuMemFreeHost");
inline const Function<Address, const void*, Size, void*> cuMemcpyHtoDAsync("cuMemcpyHtoDAsync_v2");
inline const Function<void*, Address, Size, void*> cuMemcpyDtoHAsync("cuMemcpyDtoHAsync_v2");
inline const Function<Address, Address, Size, void*> cuMemcpyDtoDAsync("cuMemcpyDtoDAsync_v2");
inline const Function<Address, unsigned char, Size, void*> cuMemsetD8Async("cuMemsetD8Async");
inline const Function<Address*, Size*, Address> cuMemGetAddressRange("cuMemGetAddressRange_v2");
inline const Function<MemoryHandle*, Address> cuIpcGetMemHandle("cuIpcGetMemHandle");
inline const Function<Address*, MemoryHandle, unsigned> cuIpcOpenMemHandle("cuIpcOpenMemHandle_v2");
inline const Function<Address> cuIpcCloseMemHandle("cuIpcCloseMemHandle");
// Streams, events and captured graphs
inline const Function<void**, unsigned> cuStreamCreate("cuStreamCreate");
inline const Function<void*> cuStreamDestroy("cuStreamDestroy_v2");
inline const Function<void*> cuStreamSynchronize("cuStreamSynchronize");
inline const Function<void*, int> cuStreamBeginCapture("cuStreamBeginCapture_v2");
inline const Function<void*, void**> cuStreamEndCapture("cuStreamEndCapture");
inline const Function<void**, unsigned> cuEventCreate("cuEventCreate");
inline const Function<void*> cuEventDestroy("cuEventDestroy_v2");
inline const Function<void*, void*> cuEventRecord("cuEventRecord");
inline const Function<void*, void*, unsigned> cuStreamWaitEvent("cuStreamWaitEvent");
inline const Function<float*, void*, void*> cuEventElapsedTime("cuEventElapsedTime");
inline const Function<void*> cuGraphDestroy("cuGraphDestroy");
inline const Function<void*> cuGraphExecDestroy("cuGraphExecDestroy");
inline const Function<void*, void*, UpdateResult*> cuGraphExecUpdate("cuGraphExecUpdate_v2");
inline const Function<void**, void*, unsigned long long> cuGraphInstantiate(
    "cuGraphInstantiateWithFlags");
inline const Function<void*, void*> cuGraphLaunch("cuGraphLaunch");
// Kernels
inline const Function<void**, const void*> cuModuleLoadData("cuModuleLoadData");
inline const Function<void*> cuModuleUnload("cuModuleUnload");
inline const Function<void**, void*, const char*> cuModuleGetFunction("cuModuleGetFunction");
inline const Function<void*, int, int> cuFuncSetAttribute("cuFuncSetAttribute");
inline const Function<int*, int, void*> cuFuncGetAttribute("cuFuncGetAttribute");
inline const Function<const LaunchConfig*, void*, void**, void**> cuLaunchKernelEx(
    "cuLaunchKernelEx");
inline const Function<void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                      void*, void**, void**>
    cuLaunchKernel("cuLaunchKernel");

constexpr int OUT_OF_MEMORY = 2;  // CUresult

// Makes a device's primary context current, and the earlier one again at the end of the scope.
class ContextScope {
public:
    explicit ContextScope(int device);
    ~ContextScope();
    ContextScope(const ContextScope&) = delete;
    ContextScope& operator=(const ContextScope&) = delete;
};

inline void* pointer(std::uintptr_t handle) { return reinterpret_cast<void*>(handle); }
inline Address address(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

// For destructors: at the end of a process the driver may be gone already.
template <typename Release>
void quietly(int device, const Release& release) noexcept {
    try {
        const ContextScope scope(device);
        release();
    } catch (const std::exception&) {
    }
}

}  // namespace mdcg::cuda
