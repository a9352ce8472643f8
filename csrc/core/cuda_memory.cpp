#include "core/cuda_memory.hpp"

#include <memory>
#include <string>
#include <utility>

namespace mdcg {

namespace {

constexpr unsigned NON_BLOCKING = 1;       // CU_STREAM_NON_BLOCKING
constexpr int CAPTURE_THREAD_LOCAL = 1;    // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
constexpr int GRAPH_UPDATE_FAILURE = 910;  // CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
constexpr std::size_t ALIGNMENT = 256;

// CUgraphExecUpdateResultInfo
struct UpdateResult {
    int result = 0;
    void *to = nullptr, *from = nullptr;
};

void* pointer(std::uintptr_t handle) { return reinterpret_cast<void*>(handle); }
std::uint64_t address(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

// The driver's function of that name; what every step calls keeps it.
template <typename Function>
Function symbol(const char* name) {
    return CudaDriver::get().symbol<Function>(name);
}

void check(int status, const char* what) { CudaDriver::get().check(status, what); }

// For destructors: at the end of a process the driver may be gone already.
template <typename Release>
void quietly(int device, const Release& release) noexcept {
    try {
        const CudaScope scope(device);
        release();
    } catch (const std::exception&) {
    }
}

std::string mebibytes(std::size_t bytes) {
    return std::to_string((bytes + (std::size_t(1) << 20) - 1) >> 20) + " MiB";
}

[[noreturn]] void no_memory(int device, std::size_t bytes) {
    std::size_t free = 0, total = 0;
    symbol<int (*)(std::size_t*, std::size_t*)>("cuMemGetInfo_v2")(&free, &total);
    throw CudaError(CUDA_OUT_OF_MEMORY,
                    "out of memory on device cuda:" + std::to_string(device) + ": " +
                        mebibytes(bytes) + " are wanted, and " + mebibytes(free) + " of " +
                        mebibytes(total) +
                        " are free: evaluate a smaller system, or use more devices",
                    true);
}

[[noreturn]] void no_pinned_memory(int device, std::size_t bytes) {
    throw CudaError(CUDA_OUT_OF_MEMORY,
                    "out of page-locked host memory: the driver does not give " + mebibytes(bytes) +
                        " for copies from and to device cuda:" + std::to_string(device) +
                        ": evaluate a smaller system, or run fewer processes on this machine",
                    true);
}

// With room for an eighth more where it is not the first time and there is room.
template <typename Memory>
void grow_memory(Memory& memory, std::size_t bytes) {
    if (bytes <= memory.bytes()) return;
    if (memory.bytes() > 0) try {
            return memory.reserve(bytes + bytes / 8);
        } catch (const CudaError& error) {
            if (error.code() != CUDA_OUT_OF_MEMORY) throw;
        }
    memory.reserve(bytes);
}

}  // namespace

// -- streams and events --------------------------------------------------------------------------

CudaStream::CudaStream(int device) : device_(device) {
    if (device == NO_DEVICE) return;
    const CudaScope scope(device);
    void* stream = nullptr;
    check(symbol<int (*)(void**, unsigned)>("cuStreamCreate")(&stream, NON_BLOCKING),
          "cuStreamCreate");
    handle_ = address(stream);
}

CudaStream::~CudaStream() {
    if (handle_ == 0) return;
    quietly(device_, [&] {
        symbol<int (*)(void*)>("cuStreamSynchronize")(pointer(handle_));
        symbol<int (*)(void*)>("cuStreamDestroy_v2")(pointer(handle_));
    });
}

void CudaStream::synchronize() const {
    if (device_ == NO_DEVICE) return;
    static const auto run = symbol<int (*)(void*)>("cuStreamSynchronize");
    const CudaScope scope(device_);
    check(run(pointer(handle_)), "cuStreamSynchronize");
}

CudaEvent::CudaEvent(int device) : device_(device) {
    const CudaScope scope(device);
    check(symbol<int (*)(void**, unsigned)>("cuEventCreate")(&event_, 0), "cuEventCreate");
}

CudaEvent::~CudaEvent() {
    quietly(device_, [&] { symbol<int (*)(void*)>("cuEventDestroy_v2")(event_); });
}

void CudaEvent::record(const CudaStream& stream) {
    static const auto run = symbol<int (*)(void*, void*)>("cuEventRecord");
    const CudaScope scope(device_);
    check(run(event_, pointer(stream.handle())), "cuEventRecord");
}

double CudaEvent::since(const CudaEvent& earlier) const {
    static const auto run = symbol<int (*)(float*, void*, void*)>("cuEventElapsedTime");
    const CudaScope scope(device_);
    float milliseconds = 0;
    check(run(&milliseconds, earlier.event_, event_), "cuEventElapsedTime");
    return static_cast<double>(milliseconds);
}

// -- memory --------------------------------------------------------------------------------------

CudaMemory::~CudaMemory() { release(); }

CudaMemory::CudaMemory(CudaMemory&& other) noexcept
    : device_(other.device_),
      address_(std::exchange(other.address_, 0)),
      bytes_(std::exchange(other.bytes_, 0)) {}

CudaMemory& CudaMemory::operator=(CudaMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

void CudaMemory::release() noexcept {
    if (address_ == 0) return;
    quietly(device_, [&] { symbol<int (*)(std::uint64_t)>("cuMemFree_v2")(address_); });
    address_ = 0;
    bytes_ = 0;
}

void CudaMemory::reserve(std::size_t bytes) {
    if (bytes <= bytes_ || device_ == NO_DEVICE) return;
    release();
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    const CudaScope scope(device_);
    std::uint64_t found = 0;
    const int status = symbol<int (*)(std::uint64_t*, std::size_t)>("cuMemAlloc_v2")(&found, bytes);
    if (status == CUDA_OUT_OF_MEMORY) no_memory(device_, bytes);
    check(status, "cuMemAlloc");
    address_ = found;
    bytes_ = bytes;
}

void CudaMemory::grow(std::size_t bytes) { grow_memory(*this, bytes); }

void CudaMemory::upload(const void* source, std::size_t bytes, const CudaStream& stream) {
    copy_to_device(data(), source, bytes, stream);
}

void CudaMemory::download(void* target, std::size_t bytes, const CudaStream& stream) const {
    copy_to_host(target, data(), bytes, stream);
}

void copy_to_device(void* target, const void* source, std::size_t bytes, const CudaStream& stream) {
    if (bytes == 0 || stream.device() == NO_DEVICE) return;
    static const auto run =
        symbol<int (*)(std::uint64_t, const void*, std::size_t, void*)>("cuMemcpyHtoDAsync_v2");
    const CudaScope scope(stream.device());
    check(run(address(target), source, bytes, pointer(stream.handle())), "cuMemcpyHtoDAsync");
}

void copy_to_host(void* target, const void* source, std::size_t bytes, const CudaStream& stream) {
    if (bytes == 0 || stream.device() == NO_DEVICE) return;
    static const auto run =
        symbol<int (*)(void*, std::uint64_t, std::size_t, void*)>("cuMemcpyDtoHAsync_v2");
    const CudaScope scope(stream.device());
    check(run(target, address(source), bytes, pointer(stream.handle())), "cuMemcpyDtoHAsync");
}

void copy_on_device(void* target, const void* source, std::size_t bytes, const CudaStream& stream) {
    if (bytes == 0 || stream.device() == NO_DEVICE) return;
    static const auto run =
        symbol<int (*)(std::uint64_t, std::uint64_t, std::size_t, void*)>("cuMemcpyDtoDAsync_v2");
    const CudaScope scope(stream.device());
    check(run(address(target), address(source), bytes, pointer(stream.handle())),
          "cuMemcpyDtoDAsync");
}

void clear_on_device(void* target, std::size_t bytes, const CudaStream& stream) {
    if (bytes == 0 || stream.device() == NO_DEVICE) return;
    static const auto run =
        symbol<int (*)(std::uint64_t, unsigned char, std::size_t, void*)>("cuMemsetD8Async");
    const CudaScope scope(stream.device());
    check(run(address(target), 0, bytes, pointer(stream.handle())), "cuMemsetD8Async");
}

PinnedMemory::~PinnedMemory() { release(); }

void PinnedMemory::release() noexcept {
    if (data_ == nullptr) return;
    quietly(device_, [&] { symbol<int (*)(void*)>("cuMemFreeHost")(data_); });
    data_ = nullptr;
    bytes_ = 0;
}

void PinnedMemory::reserve(std::size_t bytes) {
    if (bytes <= bytes_ || device_ == NO_DEVICE) return;
    release();
    const CudaScope scope(device_);
    void* found = nullptr;
    const int status =
        symbol<int (*)(void**, std::size_t, unsigned)>("cuMemHostAlloc")(&found, bytes, 0);
    if (status == CUDA_OUT_OF_MEMORY) no_pinned_memory(device_, bytes);
    check(status, "cuMemHostAlloc");
    data_ = found;
    bytes_ = bytes;
}

void PinnedMemory::grow(std::size_t bytes) { grow_memory(*this, bytes); }

// -- captured graphs -----------------------------------------------------------------------------

CapturedGraph::~CapturedGraph() { clear(); }

void CapturedGraph::clear() noexcept {
    if (executable_ == nullptr) return;
    quietly(device_, [&] { symbol<int (*)(void*)>("cuGraphExecDestroy")(executable_); });
    executable_ = nullptr;
}

void CapturedGraph::begin(const CudaStream& stream) {
    if (device_ != stream.device()) clear();
    device_ = stream.device();
    const CudaScope scope(device_);
    check(symbol<int (*)(void*, int)>("cuStreamBeginCapture_v2")(pointer(stream.handle()),
                                                                 CAPTURE_THREAD_LOCAL),
          "cuStreamBeginCapture");
    begun_ = true;
}

void CapturedGraph::end(const CudaStream& stream) {
    const CudaScope scope(device_);
    begun_ = false;
    void* graph = nullptr;
    check(symbol<int (*)(void*, void**)>("cuStreamEndCapture")(pointer(stream.handle()), &graph),
          "cuStreamEndCapture");
    const auto destroy = [](void* g) { symbol<int (*)(void*)>("cuGraphDestroy")(g); };
    const std::unique_ptr<void, decltype(destroy)> owner(graph, destroy);
    if (executable_ != nullptr) {
        // from CUDA 12 on
        static const auto update =
            CudaDriver::get().find<int (*)(void*, void*, UpdateResult*)>("cuGraphExecUpdate_v2");
        UpdateResult result;
        const int status = update ? update(executable_, graph, &result) : GRAPH_UPDATE_FAILURE;
        if (status == 0) return;
        if (status != GRAPH_UPDATE_FAILURE) check(status, "cuGraphExecUpdate");
        clear();
    }
    check(symbol<int (*)(void**, void*, unsigned long long)>("cuGraphInstantiateWithFlags")(
              &executable_, graph, 0),
          "cuGraphInstantiate");
}

void CapturedGraph::abandon(const CudaStream& stream) noexcept {
    if (begun_)
        quietly(device_, [&] {
            void* graph = nullptr;
            symbol<int (*)(void*, void**)>("cuStreamEndCapture")(pointer(stream.handle()), &graph);
            if (graph != nullptr) symbol<int (*)(void*)>("cuGraphDestroy")(graph);
        });
    begun_ = false;
    clear();
}

void CapturedGraph::replay(const CudaStream& stream) const {
    static const auto run = symbol<int (*)(void*, void*)>("cuGraphLaunch");
    const CudaScope scope(device_);
    check(run(executable_, pointer(stream.handle())), "cuGraphLaunch");
}

}  // namespace mdcg
