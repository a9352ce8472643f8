// Shared by the parts of the emulated driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace fake_cuda {

// CUresult: number, name and text
#define CUDA_STATUSES(X)                                                                           \
    X(kSuccess, 0, "CUDA_SUCCESS", "no error")                                                     \
    X(kInvalidValue, 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument")                            \
    X(kOutOfMemory, 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")                                \
    X(kNotInitialized, 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error")                    \
    X(kNoDevice, 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected")                \
    X(kInvalidDevice, 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal")                  \
    X(kInvalidImage, 200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid")            \
    X(kInvalidContext, 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context")                \
    X(kMapFailed, 205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed")                 \
    X(kNoBinary, 209, "CUDA_ERROR_NO_BINARY_FOR_GPU",                                              \
      "no kernel image is available for the device")                                               \
    X(kInvalidHandle, 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle")                 \
    X(kNotFound, 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found")                            \
    X(kNotReady, 600, "CUDA_ERROR_NOT_READY", "device not ready")                                  \
    X(kIllegalAddress, 700, "CUDA_ERROR_ILLEGAL_ADDRESS",                                          \
      "an illegal memory access was encountered")                                                  \
    X(kOutOfResources, 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",                                  \
      "too many resources requested for launch")                                                   \
    X(kLaunchTimeout, 702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated") \
    X(kLaunchFailed, 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure")                \
    X(kNotSupported, 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported")                   \
    X(kCaptureUnsupported, 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",                           \
      "operation not permitted when stream is capturing")                                          \
    X(kCaptureInvalidated, 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",                           \
      "operation failed due to a previous error during capture")                                   \
    X(kCaptureUnmatched, 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",                               \
      "capture was not initiated in the same stream as EndCapture")                                \
    X(kCaptureUnjoined, 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",                                 \
      "capturing stream has unjoined work")                                                        \
    X(kCaptureIsolation, 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",                               \
      "dependency created on uncaptured work in another stream")                                   \
    X(kCapturedEvent, 907, "CUDA_ERROR_CAPTURED_EVENT",                                            \
      "operation not permitted on an event last recorded in a capturing stream")                   \
    X(kCaptureWrongThread, 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",                          \
      "attempt to terminate a thread-local capture sequence from another thread")                  \
    X(kGraphUpdateFailed, 910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",                             \
      "the graph update was not performed")

enum Status {
#define ENTRY(status, number, name, text) status = number,
    CUDA_STATUSES(ENTRY)
#undef ENTRY
};

struct Context {
    int device;
};

struct Stream;

using Address = std::uintptr_t;
using Work = std::function<int()>;

// Allows one call at a time.
std::recursive_mutex& mutex();

// Finds the context of this thread, or returns an error. After a fault of a kernel every call
// fails, like on a device.
int current_context(Context** context);
int usable();
void set_failed(int device, int status);

// Kinds of nodes of a graph.
enum NodeKind { kKernelNode, kCopyNode, kFillNode, kHostNode, kGraphNode, kOtherNode };

// Runs or queues work, or records it if the stream is captured.
int enqueue(Stream* stream, NodeKind kind, const Work& work);

// Runs the queued work of a stream, or of all streams.
void finish_stream(Stream* stream);
void finish_all();

// Returns the error of a call that a capture forbids (an allocation, a wait), or success.
int outside_capture();

// An allocation ends at the end of its own pages, and inaccessible pages are around these.
struct Allocation {
    std::size_t bytes;
    char* pages;
    std::size_t page_bytes;
    int device;
    int file = -1;   // of its pages, when they are shared with other processes
    int opened = 0;  // another process's: how many times
};
std::map<Address, Allocation>& allocations();
// Finds the allocation that contains an address, or the end.
std::map<Address, Allocation>::iterator find_allocation(Address address);
// Reserves inaccessible pages, with others around them. Returns null if that fails.
char* reserve_pages(std::size_t page_bytes);
void unmap_pages(const Allocation& allocation);

// Whether a range belongs to one allocation on the device.
bool is_device_memory(Address address, std::size_t bytes);
// Looks whether something was written beside an allocation; says so, and returns an error.
int check_guards(const char* after);

bool capturing(Stream* stream);

}  // namespace fake_cuda
