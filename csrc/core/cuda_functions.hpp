// The functions of a driver that mdcg calls, by their names in CUDA and in HIP. A driver is opened,
// and a function looked up, at its first call. Only the implementation of device.hpp includes this
// file.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>

#include "core/device.hpp"

namespace mdcg::cuda {

// The driver that calls of this thread go to, which is CUDA's outside of these scopes.
Vendor vendor();
class VendorScope {
public:
    explicit VendorScope(Vendor vendor);
    ~VendorScope();
    VendorScope(const VendorScope&) = delete;
    VendorScope& operator=(const VendorScope&) = delete;

private:
    Vendor outer_;
};

// These start the driver. They throw std::runtime_error if there is none, and DeviceError if it
// fails.
void* find_function(const char* name);  // null: the driver is too old
void* need_function(const char* name);  // throws DeviceError if the driver is too old
[[noreturn]] void refuse_without(const char* name);
void check(int status, const char* what);

template <typename... Arguments>
class Function {
public:
    // A null name: this vendor has no such function.
    constexpr Function(const char* cuda_name, const char* hip_name) : names_{cuda_name, hip_name} {}

    // Throws DeviceError if the driver has no such function or refuses the call.
    void operator()(Arguments... arguments) const { check(status(arguments...), name()); }
    int status(Arguments... arguments) const { return address()(arguments...); }
    bool available() const {
        const int driver = static_cast<int>(vendor());
        if (pointers_[driver].load(std::memory_order_acquire) != nullptr) return true;
        if (name() == nullptr || missing_[driver].load(std::memory_order_relaxed)) return false;
        const auto found = reinterpret_cast<Pointer>(find_function(name()));
        if (found == nullptr)
            missing_[driver].store(true, std::memory_order_relaxed);
        else
            pointers_[driver].store(found, std::memory_order_release);
        return found != nullptr;
    }
    void need() const { address(); }
    const char* name() const { return names_[static_cast<int>(vendor())]; }

private:
    using Pointer = int (*)(Arguments...);
    Pointer address() const {
        std::atomic<Pointer>& pointer = pointers_[static_cast<int>(vendor())];
        Pointer found = pointer.load(std::memory_order_acquire);
        if (found == nullptr) {
            found = reinterpret_cast<Pointer>(need_function(name()));
            pointer.store(found, std::memory_order_release);
        }
        return found;
    }

    const char* names_[2];
    mutable std::atomic<Pointer> pointers_[2]{};
    mutable std::atomic<bool> missing_[2]{};  // found by available()
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
inline const Function<int*> cuDriverGetVersion("cuDriverGetVersion", "hipDriverGetVersion");
inline const Function<int*> cuDeviceGetCount("cuDeviceGetCount", "hipGetDeviceCount");
inline const Function<int*, int> cuDeviceGet("cuDeviceGet", "hipDeviceGet");
inline const Function<char*, int, int> cuDeviceGetName("cuDeviceGetName", "hipDeviceGetName");
inline const Function<unsigned char*, int> cuDeviceGetUuid("cuDeviceGetUuid_v2",
                                                           "hipDeviceGetUuid");
inline const Function<int*, int, int> cuDeviceGetAttribute("cuDeviceGetAttribute",
                                                           "hipDeviceGetAttribute");
inline const Function<void**, int> cuDevicePrimaryCtxRetain("cuDevicePrimaryCtxRetain", nullptr);
inline const Function<void*> cuCtxPushCurrent("cuCtxPushCurrent_v2", nullptr);
inline const Function<void**> cuCtxPopCurrent("cuCtxPopCurrent_v2", nullptr);
inline const Function<int*> hipGetDevice(nullptr, "hipGetDevice");
inline const Function<int> hipSetDevice(nullptr, "hipSetDevice");
// Memory
inline const Function<Size*, Size*> cuMemGetInfo("cuMemGetInfo_v2", "hipMemGetInfo");
inline const Function<Address*, Size> cuMemAlloc("cuMemAlloc_v2", "hipMalloc");
inline const Function<Address> cuMemFree("cuMemFree_v2", "hipFree");
inline const Function<void**, Size, unsigned> cuMemHostAlloc("cuMemHostAlloc", "hipHostMalloc");
inline const Function<void*> cuMemFreeHost("cuMemFreeHost", "hipHostFree");
inline const Function<Address, const void*, Size, void*> cuMemcpyHtoDAsync("cuMemcpyHtoDAsync_v2",
                                                                           "hipMemcpyHtoDAsync");
inline const Function<void*, Address, Size, void*> cuMemcpyDtoHAsync("cuMemcpyDtoHAsync_v2",
                                                                     "hipMemcpyDtoHAsync");
inline const Function<Address, Address, Size, void*> cuMemcpyDtoDAsync("cuMemcpyDtoDAsync_v2",
                                                                       "hipMemcpyDtoDAsync");
inline const Function<Address, unsigned char, Size, void*> cuMemsetD8Async("cuMemsetD8Async",
                                                                           "hipMemsetD8Async");
inline const Function<Address*, Size*, Address> cuMemGetAddressRange("cuMemGetAddressRange_v2",
                                                                     "hipMemGetAddressRange");
inline const Function<MemoryHandle*, Address> cuIpcGetMemHandle("cuIpcGetMemHandle",
                                                                "hipIpcGetMemHandle");
inline const Function<Address*, MemoryHandle, unsigned> cuIpcOpenMemHandle("cuIpcOpenMemHandle_v2",
                                                                           "hipIpcOpenMemHandle");
inline const Function<Address> cuIpcCloseMemHandle("cuIpcCloseMemHandle", "hipIpcCloseMemHandle");
// Streams, events and captured graphs
inline const Function<void**, unsigned> cuStreamCreate("cuStreamCreate",
                                                       "hipStreamCreateWithFlags");
inline const Function<void*> cuStreamDestroy("cuStreamDestroy_v2", "hipStreamDestroy");
inline const Function<void*> cuStreamSynchronize("cuStreamSynchronize", "hipStreamSynchronize");
inline const Function<void*, int> cuStreamBeginCapture("cuStreamBeginCapture_v2",
                                                       "hipStreamBeginCapture");
inline const Function<void*, void**> cuStreamEndCapture("cuStreamEndCapture",
                                                        "hipStreamEndCapture");
inline const Function<void**, unsigned> cuEventCreate("cuEventCreate", "hipEventCreateWithFlags");
inline const Function<void*> cuEventDestroy("cuEventDestroy_v2", "hipEventDestroy");
inline const Function<void*, void*> cuEventRecord("cuEventRecord", "hipEventRecord");
inline const Function<void*, void*, unsigned> cuStreamWaitEvent("cuStreamWaitEvent",
                                                                "hipStreamWaitEvent");
inline const Function<float*, void*, void*> cuEventElapsedTime("cuEventElapsedTime",
                                                               "hipEventElapsedTime");
inline const Function<void*> cuGraphDestroy("cuGraphDestroy", "hipGraphDestroy");
inline const Function<void*> cuGraphExecDestroy("cuGraphExecDestroy", "hipGraphExecDestroy");
inline const Function<void*, void*, UpdateResult*> cuGraphExecUpdate("cuGraphExecUpdate_v2",
                                                                     nullptr);
inline const Function<void**, void*, unsigned long long> cuGraphInstantiate(
    "cuGraphInstantiateWithFlags", "hipGraphInstantiateWithFlags");
inline const Function<void*, void*> cuGraphLaunch("cuGraphLaunch", "hipGraphLaunch");
// Kernels
inline const Function<void**, const void*> cuModuleLoadData("cuModuleLoadData",
                                                            "hipModuleLoadData");
inline const Function<void*> cuModuleUnload("cuModuleUnload", "hipModuleUnload");
inline const Function<void**, void*, const char*> cuModuleGetFunction("cuModuleGetFunction",
                                                                      "hipModuleGetFunction");
inline const Function<void*, int, int> cuFuncSetAttribute("cuFuncSetAttribute", nullptr);
inline const Function<int*, int, void*> cuFuncGetAttribute("cuFuncGetAttribute",
                                                           "hipFuncGetAttribute");
inline const Function<const LaunchConfig*, void*, void**, void**> cuLaunchKernelEx(
    "cuLaunchKernelEx", nullptr);
inline const Function<void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                      void*, void**, void**>
    cuLaunchKernel("cuLaunchKernel", "hipModuleLaunchKernel");

constexpr int OUT_OF_MEMORY = 2;  // CUresult, hipError_t

// Sends calls of this thread to a device: its vendor's driver, and there the device's primary
// context. At the end of the scope everything is as before.
class ContextScope {
public:
    explicit ContextScope(int device);
    ~ContextScope();
    ContextScope(const ContextScope&) = delete;
    ContextScope& operator=(const ContextScope&) = delete;

private:
    VendorScope vendor_;
    int outer_ = -1;  // HIP: the device before
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
