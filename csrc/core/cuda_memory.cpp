#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "core/cuda_functions.hpp"
#include "core/device.hpp"

namespace mdcg {

using cuda::address, cuda::ContextScope, cuda::OUT_OF_MEMORY, cuda::pointer, cuda::quietly;

namespace {

constexpr unsigned NON_BLOCKING = 1;       // CU_STREAM_NON_BLOCKING
constexpr int CAPTURE_THREAD_LOCAL = 1;    // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
constexpr unsigned LAZY_PEER_ACCESS = 1;   // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
constexpr int GRAPH_UPDATE_FAILURE = 910;  // CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE

std::string mebibytes(std::size_t bytes) {
    return std::to_string((bytes + (std::size_t(1) << 20) - 1) >> 20) + " MiB";
}

[[noreturn]] void no_memory(int device, std::size_t bytes) {
    BytesOfDevice memory;
    // A failure here must not hide the lack of memory.
    cuda::cuMemGetInfo.status(&memory.free, &memory.total);
    throw DeviceError(DeviceError::out_of_memory, OUT_OF_MEMORY,
                      "out of memory on device " + device_label(device) + ": " + mebibytes(bytes) +
                          " are wanted, and " + mebibytes(memory.free) + " of " +
                          mebibytes(memory.total) +
                          " are free: evaluate a smaller system, or use more devices",
                      true);
}

[[noreturn]] void no_pinned_memory(int device, std::size_t bytes) {
    throw DeviceError(DeviceError::out_of_memory, OUT_OF_MEMORY,
                      "out of page-locked host memory: the driver does not give " +
                          mebibytes(bytes) + " for copies from and to device " +
                          device_label(device) +
                          ": evaluate a smaller system, or run fewer processes on this machine",
                      true);
}

// Memory gets a 64th more than needed at first, and an eighth more when it grows again, but at most
// `spare`, if there is enough: the next list may have a few more edges and ghosts.
template <typename Memory>
void grow_memory(Memory& memory, std::size_t bytes,
                 std::size_t spare = std::numeric_limits<std::size_t>::max()) {
    if (bytes <= memory.bytes()) return;
    try {
        memory.reserve(bytes + std::min(bytes / (memory.bytes() > 0 ? 8 : 64), spare));
    } catch (const DeviceError& error) {
        if (error.kind() != DeviceError::out_of_memory) throw;
        memory.reserve(bytes);
    }
}

}  // namespace

BytesOfDevice device_memory(int device) {
    BytesOfDevice found;
    const ContextScope scope(device);
    cuda::cuMemGetInfo(&found.free, &found.total);
    return found;
}

// -- streams and events --------------------------------------------------------------------------

DeviceStream::DeviceStream(int device) : device_(device) {
    if (device == NO_DEVICE) return;
    const ContextScope scope(device);
    void* stream = nullptr;
    cuda::cuStreamCreate(&stream, NON_BLOCKING);
    handle_ = address(stream);
}

DeviceStream::~DeviceStream() {
    if (handle_ == 0) return;
    quietly(device_, [&] {
        cuda::cuStreamSynchronize.status(pointer(handle_));
        cuda::cuStreamDestroy.status(pointer(handle_));
    });
}

void DeviceStream::synchronize() const {
    if (device_ == NO_DEVICE) return;
    const ContextScope scope(device_);
    cuda::cuStreamSynchronize(pointer(handle_));
}

DeviceEvent::DeviceEvent(int device) : device_(device) {
    if (device == NO_DEVICE) return;
    const ContextScope scope(device);
    cuda::cuEventCreate(&event_, 0);
}

DeviceEvent::~DeviceEvent() {
    if (event_ != nullptr) quietly(device_, [&] { cuda::cuEventDestroy.status(event_); });
}

void DeviceEvent::record(const DeviceStream& stream) {
    const ContextScope scope(device_);
    cuda::cuEventRecord(event_, pointer(stream.handle()));
}

void DeviceEvent::wait(const DeviceStream& stream) const {
    const ContextScope scope(device_);
    cuda::cuStreamWaitEvent(pointer(stream.handle()), event_, 0);
}

double DeviceEvent::since(const DeviceEvent& earlier) const {
    const ContextScope scope(device_);
    float milliseconds = 0;
    cuda::cuEventElapsedTime(&milliseconds, earlier.event_, event_);
    return static_cast<double>(milliseconds);
}

// -- memory --------------------------------------------------------------------------------------

DeviceMemory::~DeviceMemory() { release(); }

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : device_(other.device_),
      address_(std::exchange(other.address_, 0)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

void DeviceMemory::release() noexcept {
    if (address_ == 0) return;
    quietly(device_, [&] { cuda::cuMemFree.status(address_); });
    address_ = 0;
    bytes_ = 0;
}

void DeviceMemory::reserve(std::size_t bytes) {
    if (bytes <= bytes_ || device_ == NO_DEVICE) return;
    release();
    bytes = (bytes + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
    const ContextScope scope(device_);
    std::uint64_t found = 0;
    const int status = cuda::cuMemAlloc.status(&found, bytes);
    if (status == OUT_OF_MEMORY) no_memory(device_, bytes);
    cuda::check(status, cuda::cuMemAlloc.name());
    address_ = found;
    bytes_ = bytes;
}

void DeviceMemory::grow(std::size_t bytes, std::size_t spare) { grow_memory(*this, bytes, spare); }

void DeviceMemory::upload(const void* source, std::size_t bytes, const DeviceStream& stream) {
    copy_to_device(data(), source, bytes, stream);
}

void copy_to_device(void* target, const void* source, std::size_t bytes,
                    const DeviceStream& stream) {
    if (bytes == 0 || stream.device() == NO_DEVICE) return;
    const ContextScope scope(stream.device());
    cuda::cuMemcpyHtoDAsync(address(target), source, bytes, pointer(stream.handle()));
}

void copy_to_host(void* target, const void* source, std::size_t bytes, const DeviceStream& stream) {
    if (bytes == 0 || stream.device() == NO_DEVICE) return;
    const ContextScope scope(stream.device());
    cuda::cuMemcpyDtoHAsync(target, address(source), bytes, pointer(stream.handle()));
}

void copy_on_device(void* target, const void* source, std::size_t bytes,
                    const DeviceStream& stream) {
    if (bytes == 0 || stream.device() == NO_DEVICE) return;
    const ContextScope scope(stream.device());
    cuda::cuMemcpyDtoDAsync(address(target), address(source), bytes, pointer(stream.handle()));
}

void clear_on_device(void* target, std::size_t bytes, const DeviceStream& stream) {
    if (bytes == 0 || stream.device() == NO_DEVICE) return;
    const ContextScope scope(stream.device());
    cuda::cuMemsetD8Async(address(target), 0, bytes, pointer(stream.handle()));
}

PinnedMemory::~PinnedMemory() { release(); }

void PinnedMemory::release() noexcept {
    if (data_ == nullptr) return;
    quietly(device_, [&] { cuda::cuMemFreeHost.status(data_); });
    data_ = nullptr;
    bytes_ = 0;
}

void PinnedMemory::reserve(std::size_t bytes) {
    if (bytes <= bytes_ || device_ == NO_DEVICE) return;
    release();
    const ContextScope scope(device_);
    void* found = nullptr;
    const int status = cuda::cuMemHostAlloc.status(&found, bytes, 0);
    if (status == OUT_OF_MEMORY) no_pinned_memory(device_, bytes);
    cuda::check(status, cuda::cuMemHostAlloc.name());
    data_ = found;
    bytes_ = bytes;
}

void PinnedMemory::grow(std::size_t bytes) { grow_memory(*this, bytes); }

// -- captured graphs -----------------------------------------------------------------------------

namespace {

// Puts a new graph in place of an older one. Returns false where that is not possible. NOTES: HIP's
// function is not used. By AMD's sources (hipamd/src/hip_graph_internal.cpp) it does not compare
// which nodes wait for which, and by reports of its users it may keep the old arguments of kernels,
// and holds more memory with every call.
bool update_graph(void* executable, void* graph) {
    if (!cuda::cuGraphExecUpdate.available()) return false;  // from CUDA 12 on, not in HIP
    cuda::UpdateResult result;
    const int status = cuda::cuGraphExecUpdate.status(executable, graph, &result);
    if (status != 0 && status != GRAPH_UPDATE_FAILURE) cuda::check(status, "the update of a graph");
    return status == 0;
}

}  // namespace

CapturedGraph::~CapturedGraph() { clear(); }

void CapturedGraph::clear() noexcept {
    if (executable_ == nullptr) return;
    quietly(device_, [&] { cuda::cuGraphExecDestroy.status(executable_); });
    executable_ = nullptr;
}

void CapturedGraph::begin(const DeviceStream& stream) {
    if (device_ != stream.device()) clear();
    device_ = stream.device();
    const ContextScope scope(device_);
    cuda::cuStreamBeginCapture(pointer(stream.handle()), CAPTURE_THREAD_LOCAL);
    begun_ = true;
}

void CapturedGraph::end(const DeviceStream& stream) {
    const ContextScope scope(device_);
    begun_ = false;
    void* graph = nullptr;
    cuda::cuStreamEndCapture(pointer(stream.handle()), &graph);
    const auto destroy = [](void* g) { cuda::cuGraphDestroy.status(g); };
    const std::unique_ptr<void, decltype(destroy)> owner(graph, destroy);
    if (executable_ != nullptr) {
        if (update_graph(executable_, graph)) return;
        clear();
    }
    cuda::cuGraphInstantiate(&executable_, graph, 0);
}

void CapturedGraph::abandon(const DeviceStream& stream) noexcept {
    if (begun_)
        quietly(device_, [&] {
            void* graph = nullptr;
            cuda::cuStreamEndCapture.status(pointer(stream.handle()), &graph);
            if (graph != nullptr) cuda::cuGraphDestroy.status(graph);
        });
    begun_ = false;
    clear();
}

void CapturedGraph::replay(const DeviceStream& stream) const {
    const ContextScope scope(device_);
    cuda::cuGraphLaunch(executable_, pointer(stream.handle()));
}

// -- memory of other processes -------------------------------------------------------------------

SharedMemoryHandle share(const DeviceMemory& memory, int device) {
    const ContextScope scope(device);
    const std::uint64_t start = address(memory.data());
    std::uint64_t base = 0;
    std::size_t bytes = 0;
    cuda::cuMemGetAddressRange(&base, &bytes, start);
    cuda::MemoryHandle found;
    cuda::cuIpcGetMemHandle(&found, start);
    SharedMemoryHandle handle;
    static_assert(sizeof found == sizeof handle.driver);
    std::memcpy(handle.driver, found.bytes, sizeof found.bytes);
    handle.offset = start - base;
    return handle;
}

PeerMemory::PeerMemory(int device, const SharedMemoryHandle& handle)
    : device_(device), offset_(handle.offset) {
    const ContextScope scope(device);
    cuda::MemoryHandle wanted;
    std::memcpy(wanted.bytes, handle.driver, sizeof wanted.bytes);
    // the only flag of HIP was 0 before version 6
    const bool old = cuda::vendor() == Vendor::amd && driver_version(Vendor::amd) < 6000;
    cuda::cuIpcOpenMemHandle(&base_, wanted, old ? 0 : LAZY_PEER_ACCESS);
}

PeerMemory::~PeerMemory() {
    quietly(device_, [&] { cuda::cuIpcCloseMemHandle(base_); });
}

}  // namespace mdcg
