// Shared by the parts of the emulated driver.
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
int synchronous_call();  // the same for calls that use the default stream

// An allocation ends at the end of its own pages, and inaccessible pages are around these.
struct Allocation {
    std::size_t bytes;
    char* pages;
    std::size_t page_bytes;
    int device;
    bool pooled = false;  // allocated in the order of a stream
    int file = -1;        // file of its pages, if other processes share them
    int opened = 0;       // how many times it was opened, if another process owns it
};
std::map<Address, Allocation>& allocations();
// Finds the allocation that contains an address, or the end.
std::map<Address, Allocation>::iterator find_allocation(Address address);
// Reserves inaccessible pages, with others around them. Returns null if that fails.
char* reserve_pages(std::size_t page_bytes);
void unmap_pages(const Allocation& allocation);

// Whether a range belongs to one allocation on the device.
bool is_device_memory(Address address, std::size_t bytes);
// Allocate and free memory. A graph may own memory, which exists as long as the graph.
int allocate(Address* address, std::size_t bytes);
int release(Address address);
// Lets copies reach a variable of a library of kernels.
void add_variable(Address address, std::size_t bytes);
// Returns an error, after a message, if a kernel has written outside of an allocation.
int check_guards(const char* after);

// Whether a stream is captured, and a way to make its graph own memory.
bool capturing(Stream* stream);
void give_to_graph(Stream* stream, Address address);

}  // namespace fake_cuda
