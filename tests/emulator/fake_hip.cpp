// AMD's driver by the names of HIP: its functions have the shape of CUDA's, so these call them.

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fake_cuda.hpp"

namespace fake_cuda {

using Size = std::size_t;

// The process in which HIP was started. Calls end a process that was forked from it, as they may
// with HIP itself.
static pid_t started = 0;

static void require_same_process() {
    if (started == 0 || started == getpid()) return;
    std::fputs("HIP was called in a forked process\n", stderr);
    std::abort();
}

#define SAME(HIP, CUDA, PARAMETERS, ARGUMENTS) \
    EXPORT int CUDA PARAMETERS;                \
    EXPORT int HIP PARAMETERS {                \
        require_same_process();                \
        return CUDA ARGUMENTS;                 \
    }

struct Handle {
    unsigned char bytes[64];
};

EXPORT int cuInit(unsigned flags);
EXPORT int hipInit(unsigned flags) {
    require_same_process();
    const int status = cuInit(flags);
    if (status == 0) started = getpid();
    return status;
}
SAME(hipGetDeviceCount, cuDeviceGetCount, (int* a), (a))
SAME(hipDeviceGet, cuDeviceGet, (int* a, int b), (a, b))
SAME(hipDeviceGetName, cuDeviceGetName, (char* a, int b, int c), (a, b, c))
SAME(hipMemGetInfo, cuMemGetInfo_v2, (Size * a, Size* b), (a, b))
SAME(hipMalloc, cuMemAlloc_v2, (Address * a, Size b), (a, b))
SAME(hipFree, cuMemFree_v2, (Address a), (a))
SAME(hipHostMalloc, cuMemHostAlloc, (void** a, Size b, unsigned c), (a, b, c))
SAME(hipHostFree, cuMemFreeHost, (void* a), (a))
SAME(hipMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (Address a, const void* b, Size c, Stream* d),
     (a, b, c, d))
SAME(hipMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void* a, Address b, Size c, Stream* d),
     (a, b, c, d))
SAME(hipMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (Address a, Address b, Size c, Stream* d),
     (a, b, c, d))
SAME(hipMemsetD8Async, cuMemsetD8Async, (Address a, unsigned char b, Size c, Stream* d),
     (a, b, c, d))
SAME(hipMemGetAddressRange, cuMemGetAddressRange_v2, (Address * a, Size* b, Address c), (a, b, c))
SAME(hipIpcGetMemHandle, cuIpcGetMemHandle, (Handle * a, Address b), (a, b))
SAME(hipIpcCloseMemHandle, cuIpcCloseMemHandle, (Address a), (a))
SAME(hipStreamCreateWithFlags, cuStreamCreate, (Stream * *a, unsigned b), (a, b))
SAME(hipStreamDestroy, cuStreamDestroy_v2, (Stream * a), (a))
SAME(hipStreamSynchronize, cuStreamSynchronize, (Stream * a), (a))
SAME(hipStreamBeginCapture, cuStreamBeginCapture_v2, (Stream * a, int b), (a, b))
SAME(hipStreamEndCapture, cuStreamEndCapture, (Stream * a, void** b), (a, b))
SAME(hipEventCreateWithFlags, cuEventCreate, (void** a, unsigned b), (a, b))
SAME(hipEventDestroy, cuEventDestroy_v2, (void* a), (a))
SAME(hipEventRecord, cuEventRecord, (void* a, Stream* b), (a, b))
SAME(hipStreamWaitEvent, cuStreamWaitEvent, (Stream * a, void* b, unsigned c), (a, b, c))
SAME(hipEventElapsedTime, cuEventElapsedTime, (float* a, void* b, void* c), (a, b, c))
SAME(hipGraphDestroy, cuGraphDestroy, (void* a), (a))
SAME(hipGraphExecDestroy, cuGraphExecDestroy, (void* a), (a))
SAME(hipGraphInstantiateWithFlags, cuGraphInstantiateWithFlags,
     (void** a, void* b, unsigned long long c), (a, b, c))
SAME(hipGraphLaunch, cuGraphLaunch, (void* a, Stream* b), (a, b))
SAME(hipModuleLoadData, cuModuleLoadData, (void** a, const void* b), (a, b))
SAME(hipModuleUnload, cuModuleUnload, (void* a), (a))
SAME(hipModuleGetFunction, cuModuleGetFunction, (void** a, void* b, const char* c), (a, b, c))
SAME(hipFuncGetAttribute, cuFuncGetAttribute, (int* a, int b, void* c), (a, b, c))
SAME(hipModuleLaunchKernel, cuLaunchKernel,
     (void* a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned g, unsigned h,
      Stream* i, void** j, void** k),
     (a, b, c, d, e, f, g, h, i, j, k))
#undef SAME

// What differs from CUDA

EXPORT int cuGetErrorName(int status, const char** text);
EXPORT int cuGetErrorString(int status, const char** text);
EXPORT const char* hipGetErrorName(int status) {
    const char* text = "hipErrorUnknown";
    cuGetErrorName(status, &text);
    return text;
}
EXPORT const char* hipGetErrorString(int status) {
    const char* text = "unknown error";
    cuGetErrorString(status, &text);
    return text;
}
EXPORT int hipDriverGetVersion(int* version) {
    const char* const text = std::getenv("EMULATED_HIP_VERSION");
    *version = text != nullptr ? std::atoi(text) : 60240000;  // 6.2
    return kSuccess;
}

EXPORT int cuIpcOpenMemHandle_v2(Address* address, Handle handle, unsigned flags);
EXPORT int hipIpcOpenMemHandle(Address* address, Handle handle, unsigned flags) {
    int version = 0;
    hipDriverGetVersion(&version);
    const unsigned only = version < 60000000 ? 0 : 1;  // the flag that is required
    return flags == only ? cuIpcOpenMemHandle_v2(address, handle, 1) : kInvalidValue;
}

// Cards without a serial number have one uuid.
EXPORT int cuDeviceGetUuid_v2(unsigned char* uuid, int device);
EXPORT int hipDeviceGetUuid(unsigned char* uuid, int device) {
    const char* const text = std::getenv("EMULATED_HIP_UUIDS");
    return cuDeviceGetUuid_v2(uuid, text != nullptr && std::strcmp(text, "0") == 0 ? 0 : device);
}

EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device);
EXPORT int hipDeviceGetAttribute(int* value, int attribute, int device) {
    constexpr int kMultiprocessors = 63;
    if (attribute != kMultiprocessors) return kInvalidValue;
    return cuDeviceGetAttribute(value, 16, device);
}

// Only the names of the device and of its architecture are there.
EXPORT int hipGetDevicePropertiesR0600(char* properties, int device) {
    int count = 0;
    if (const int status = cuDeviceGetCount(&count)) return status;
    if (device < 0 || device >= count) return kInvalidDevice;
    std::strcpy(properties, "gfx Emulated device");
    std::strcpy(properties + 1160, "gfx90a:sramecc+:xnack-");
    return kSuccess;
}

EXPORT int cuDevicePrimaryCtxRetain(Context** context, int device);
EXPORT int cuCtxPushCurrent_v2(Context* context);
EXPORT int cuCtxPopCurrent_v2(Context** context);

namespace {
thread_local int current_device = -1;  // the context that this thread has pushed
}

EXPORT int hipGetDevice(int* device) {
    *device = current_device < 0 ? 0 : current_device;
    return kSuccess;
}
EXPORT int hipSetDevice(int device) {
    if (device == current_device) return kSuccess;
    Context* context = nullptr;
    if (const int status = cuDevicePrimaryCtxRetain(&context, device)) return status;
    if (current_device >= 0) cuCtxPopCurrent_v2(nullptr);
    current_device = device;
    return cuCtxPushCurrent_v2(context);
}

}  // namespace fake_cuda
