// Memory of the emulated driver. Each allocation has its own pages between inaccessible ones, and
// is filled with NaN.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <vector>

#include "fake_cuda.hpp"

namespace fake_cuda {

namespace {

constexpr std::size_t kPage = 4096, kAlignment = 256, kBefore = 256, kForbidden = 1 << 20;

std::map<Address, std::size_t> variables, pinned;
std::size_t used = 0;

std::size_t rounded(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

// Returns the memory of the current device: of all devices, or with "1:bytes" of device 1.
std::size_t limit() {
    constexpr std::size_t kMost = std::size_t(8) << 30;
    const char* const text = std::getenv("EMULATED_CUDA_MEMORY");
    if (text == nullptr) return kMost;
    char* end = nullptr;
    const std::size_t first = std::strtoull(text, &end, 10);
    if (*end != ':') return first;
    Context* context = nullptr;
    const bool meant = current_context(&context) == kSuccess && context->device == int(first);
    return meant ? std::strtoull(end + 1, nullptr, 10) : kMost;
}

std::size_t pinned_limit() {
    const char* const text = std::getenv("EMULATED_CUDA_PINNED");
    return text != nullptr && *text != 0 ? std::strtoull(text, nullptr, 10) : std::size_t(-1);
}

// Whether all bytes of a range still have the value that they were filled with.
bool is_filled(const char* from, const char* to) {
    for (; from != to; ++from)
        if (static_cast<unsigned char>(*from) != 0xff) return false;
    return true;
}

}  // namespace

std::map<Address, Allocation>& allocations() {
    static std::map<Address, Allocation> all;
    return all;
}

std::map<Address, Allocation>::iterator find_allocation(Address address) {
    const auto next = allocations().upper_bound(address);
    if (next == allocations().begin()) return allocations().end();
    const auto found = std::prev(next);
    return address - found->first < found->second.bytes ? found : allocations().end();
}

char* reserve_pages(std::size_t page_bytes) {
    void* const memory = mmap(nullptr, page_bytes + 2 * kForbidden, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory != MAP_FAILED ? static_cast<char*>(memory) + kForbidden : nullptr;
}

void unmap_pages(const Allocation& a) {
    munmap(a.pages - kForbidden, a.page_bytes + 2 * kForbidden);
}

int allocate(Address* address, std::size_t bytes) {
    if (address == nullptr || bytes == 0) return kInvalidValue;
    if (bytes > limit() || used + bytes > limit()) return kOutOfMemory;
    const std::size_t inside = rounded(bytes, kAlignment);
    const std::size_t page_bytes = rounded(inside + kBefore, kPage);
    Context* context = nullptr;
    if (const int status = current_context(&context)) return status;
    char* const pages = reserve_pages(page_bytes);
    if (pages == nullptr) return kOutOfMemory;
    mprotect(pages, page_bytes, PROT_READ | PROT_WRITE);
    std::memset(pages, 0xff, page_bytes);
    *address = reinterpret_cast<Address>(pages + page_bytes - inside);
    allocations()[*address] = {bytes, pages, page_bytes, context->device};
    used += bytes;
    return kSuccess;
}

int check_guards(const char* after) {
    for (const auto& [start, a] : allocations()) {
        const char* const p = reinterpret_cast<const char*>(start);
        const bool before = is_filled(p - kBefore, p);
        if (before && is_filled(p + a.bytes, p + rounded(a.bytes, kAlignment))) continue;
        std::fprintf(stderr, "emulated device memory: %s wrote %s an allocation of %zu bytes\n",
                     after, before ? "past the end of" : "before", a.bytes);
        return kIllegalAddress;
    }
    return kSuccess;
}

int release(Address address) {
    const auto found = allocations().find(address);
    if (found == allocations().end() || found->second.opened != 0) return kInvalidValue;
    const Allocation& a = found->second;
    if (a.file >= 0) {
        std::memset(a.pages, 0xff, a.page_bytes);  // other processes that read it get NaN
        close(a.file);
    }
    unmap_pages(a);
    used -= a.bytes;
    allocations().erase(found);
    return kSuccess;
}

void add_variable(Address address, std::size_t bytes) { variables[address] = bytes; }

bool is_device_memory(Address address, std::size_t bytes) {
    for (const auto& [start, size] : variables)
        if (address >= start && address + bytes <= start + size) return true;
    auto next = allocations().upper_bound(address);
    if (next == allocations().begin()) return false;
    --next;
    return address - next->first <= next->second.bytes &&
           bytes <= next->second.bytes - (address - next->first);
}

namespace {

bool is_pinned(Address address) {
    const auto next = pinned.upper_bound(address);
    return next != pinned.begin() && address - std::prev(next)->first < std::prev(next)->second;
}

// A range that a copy reads or writes.
struct Range {
    Address address;
    bool on_device;
};

int copy(Stream* stream, bool wait, Range to, Range from, std::size_t bytes) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    if (const int status = usable()) return status;
    if (wait)
        if (const int status = synchronous_call()) return status;
    for (const Range& range : {to, from})
        if ((range.on_device && !is_device_memory(range.address, bytes)) ||
            (bytes != 0 && range.address == 0))
            return kInvalidValue;
    if (bytes == 0) return kSuccess;
    // a call reads and writes ordinary memory of the host before it returns
    const auto ordinary = [&](const Range& range) {
        return !capturing(stream) && !is_pinned(range.address) &&
               !is_device_memory(range.address, bytes);
    };
    std::shared_ptr<std::vector<char>> staged;
    if (ordinary(from)) {
        const char* const p = reinterpret_cast<const char*>(from.address);
        staged = std::make_shared<std::vector<char>>(p, p + bytes);
    }
    const int status = enqueue(stream, kCopyNode, [=] {
        const void* const source =
            staged != nullptr ? staged->data() : reinterpret_cast<const void*>(from.address);
        std::memmove(reinterpret_cast<void*>(to.address), source, bytes);
        return int(kSuccess);
    });
    if (ordinary(to)) finish_stream(stream);
    return status;
}

template <class V>
int fill(Stream* stream, bool wait, Address to, V value, std::size_t count) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    if (const int status = usable()) return status;
    if (wait)
        if (const int status = synchronous_call()) return status;
    if (to % sizeof(V) != 0 || !is_device_memory(to, count * sizeof(V))) return kInvalidValue;
    return enqueue(stream, kFillNode, [=] {
        V* const p = reinterpret_cast<V*>(to);
        for (std::size_t i = 0; i < count; ++i) p[i] = value;
        return int(kSuccess);
    });
}

Range device(Address p) { return {p, true}; }
Range host(const void* p) { return {reinterpret_cast<Address>(p), false}; }

}  // namespace

EXPORT int cuMemAlloc_v2(Address* address, std::size_t bytes) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    if (const int status = usable()) return status;
    if (const int status = outside_capture()) return status;
    return allocate(address, bytes);
}
EXPORT int cuMemFree_v2(Address address) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    if (const int status = usable()) return status;
    if (const int status = outside_capture()) return status;
    finish_all();
    return address == 0 ? int(kSuccess) : release(address);
}
EXPORT int cuMemAllocAsync(Address* address, std::size_t bytes, Stream* stream) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    if (const int status = usable()) return status;
    if (const int status = allocate(address, bytes)) return status;
    allocations()[*address].pooled = true;
    if (capturing(stream)) give_to_graph(stream, *address);
    return kSuccess;
}
EXPORT int cuMemFreeAsync(Address address, Stream* stream) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    if (const int status = usable()) return status;
    const auto found = allocations().find(address);
    if (found == allocations().end() || found->second.opened != 0) return kInvalidValue;
    if (capturing(stream)) return kSuccess;
    return enqueue(stream, kOtherNode, [=] { return release(address); });
}
EXPORT int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    if (const int status = usable()) return status;
    *total = limit();
    *free = limit() - std::min(limit(), used);
    return kSuccess;
}

EXPORT int cuMemAllocHost_v2(void** address, std::size_t bytes) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    if (const int status = usable()) return status;
    if (const int status = outside_capture()) return status;
    if (bytes == 0) return kInvalidValue;
    std::size_t all = bytes;
    for (const auto& [start, size] : pinned) all += size;
    if (all > pinned_limit()) return kOutOfMemory;
    *address = std::aligned_alloc(kPage, rounded(bytes, kPage));
    if (*address == nullptr) return kOutOfMemory;
    pinned[reinterpret_cast<Address>(*address)] = bytes;
    return kSuccess;
}
EXPORT int cuMemHostAlloc(void** address, std::size_t bytes, unsigned) {
    return cuMemAllocHost_v2(address, bytes);
}
EXPORT int cuMemFreeHost(void* address) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    finish_all();
    if (pinned.erase(reinterpret_cast<Address>(address)) == 0) return kInvalidValue;
    std::free(address);
    return kSuccess;
}

EXPORT int cuMemcpyHtoD_v2(Address to, const void* from, std::size_t bytes) {
    return copy(nullptr, true, device(to), host(from), bytes);
}
EXPORT int cuMemcpyDtoH_v2(void* to, Address from, std::size_t bytes) {
    return copy(nullptr, true, host(to), device(from), bytes);
}
EXPORT int cuMemcpyDtoD_v2(Address to, Address from, std::size_t bytes) {
    return copy(nullptr, true, device(to), device(from), bytes);
}
EXPORT int cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, Stream* stream) {
    return copy(stream, false, device(to), host(from), bytes);
}
EXPORT int cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, Stream* stream) {
    return copy(stream, false, host(to), device(from), bytes);
}
EXPORT int cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t bytes, Stream* stream) {
    return copy(stream, false, device(to), device(from), bytes);
}
// Each side may be on the device or on the host.
EXPORT int cuMemcpy(Address to, Address from, std::size_t bytes) {
    return copy(nullptr, true, {to, false}, {from, false}, bytes);
}
EXPORT int cuMemsetD8_v2(Address to, unsigned char value, std::size_t count) {
    return fill(nullptr, true, to, value, count);
}
EXPORT int cuMemsetD32_v2(Address to, unsigned value, std::size_t count) {
    return fill(nullptr, true, to, value, count);
}
EXPORT int cuMemsetD8Async(Address to, unsigned char value, std::size_t count, Stream* stream) {
    return fill(stream, false, to, value, count);
}

}  // namespace fake_cuda
