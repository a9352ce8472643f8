// What the parts of the emulated driver share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace fake_cuda {

// CUresult
enum Status {
    kSuccess = 0,
    kInvalidValue = 1,
    kOutOfMemory = 2,
    kNotInitialized = 3,
    kNoDevice = 100,
    kInvalidDevice = 101,
    kInvalidImage = 200,
    kInvalidContext = 201,
    kMapFailed = 205,
    kNoBinary = 209,
    kPeersUnsupported = 217,
    kInvalidHandle = 400,
    kNotFound = 500,
    kNotReady = 600,
    kIllegalAddress = 700,
    kOutOfResources = 701,
    kLaunchTimeout = 702,
    kLaunchFailed = 719,
    kNotSupported = 801,
    kCaptureUnsupported = 900,
    kCaptureInvalidated = 901,
    kCaptureUnmatched = 903,
    kCaptureUnjoined = 904,
    kCaptureIsolation = 905,
    kCaptureImplicit = 906,
    kCapturedEvent = 907,
    kCaptureWrongThread = 908,
    kGraphUpdateFailed = 910,
};

struct Context {
    int device;
};

struct Stream;

using Address = std::uintptr_t;
using Work = std::function<int()>;

// One call at a time.
std::recursive_mutex& mutex();

// The context of this thread, or the reason why there is none. After a fault of a kernel every
// call fails, as on a device.
int current_context(Context** context);
int usable();
void set_failed(int device, int status);

// What work is as a node of a graph.
enum NodeKind { kKernelNode, kCopyNode, kFillNode, kHostNode, kGraphNode, kOtherNode };

// Runs it now, or records it where the stream is captured.
int enqueue(Stream* stream, NodeKind kind, const Work& work);

// Runs what waits in a stream, or in all of them.
void finish_stream(Stream* stream);
void finish_all();

// For calls that a capture forbids (an allocation, a wait): what they return then.
int outside_capture();
int synchronous_call();  // the same for those that use the default stream

// An allocation: pages of its own, which it ends together with, between others that cannot be
// touched.
struct Allocation {
    std::size_t bytes;
    char* pages;
    std::size_t page_bytes;
    int device;
    bool pooled = false;  // allocated in the order of a stream
    int file = -1;        // of its pages, when they are shared with other processes
    int opened = 0;       // another process's: how many times
};
std::map<Address, Allocation>& allocations();
// The one that contains an address, or the end.
std::map<Address, Allocation>::iterator find_allocation(Address address);
// Reserves pages that cannot be touched yet, and others around them; null where that fails.
char* reserve_pages(std::size_t page_bytes);
void unmap_pages(const Allocation& allocation);

// Whether a range belongs to one allocation on the device.
bool is_device_memory(Address address, std::size_t bytes);
// Allocates and frees; an owner may be a graph, whose memory lives as long as it.
int allocate(Address* address, std::size_t bytes);
int release(Address address);
// Lets copies reach a variable of a library of kernels.
void add_variable(Address address, std::size_t bytes);
// Looks whether something was written beside an allocation; says so, and returns an error.
int check_guards(const char* after);

// The graph that a stream is recorded into may own memory.
bool capturing(Stream* stream);
void give_to_graph(Stream* stream, Address address);

}  // namespace fake_cuda
