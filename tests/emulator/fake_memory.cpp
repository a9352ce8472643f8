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

std::map<Address, std::size_t> pinned;
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

bool is_device_memory(Address address, std::size_t bytes) {
    const auto found = find_allocation(address);
    return bytes == 0 || (found != allocations().end() &&
                          bytes <= found->second.bytes - (address - found->first));
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

int copy(Stream* stream, Range to, Range from, std::size_t bytes) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    if (const int status = usable()) return status;
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

Range device(Address p) { return {p, true}; }
Range host(const void* p) { return {reinterpret_cast<Address>(p), false}; }

}  // namespace

EXPORT int cuMemAlloc_v2(Address* address, std::size_t bytes) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    Context* context = nullptr;
    if (const int status = current_context(&context)) return status;
    if (const int status = outside_capture()) return status;
    if (address == nullptr || bytes == 0) return kInvalidValue;
    if (bytes > limit() || used + bytes > limit()) return kOutOfMemory;
    const std::size_t inside = rounded(bytes, kAlignment);
    const std::size_t page_bytes = rounded(inside + kBefore, kPage);
    char* const pages = reserve_pages(page_bytes);
    if (pages == nullptr) return kOutOfMemory;
    mprotect(pages, page_bytes, PROT_READ | PROT_WRITE);
    std::memset(pages, 0xff, page_bytes);
    *address = reinterpret_cast<Address>(pages + page_bytes - inside);
    allocations()[*address] = {bytes, pages, page_bytes, context->device};
    used += bytes;
    return kSuccess;
}
EXPORT int cuMemFree_v2(Address address) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    if (const int status = usable()) return status;
    if (const int status = outside_capture()) return status;
    finish_all();
    if (address == 0) return kSuccess;
    const auto found = allocations().find(address);
    if (found == allocations().end() || found->second.opened != 0) return kInvalidValue;
    const Allocation& a = found->second;
    if (a.file >= 0) {
        std::memset(a.pages, 0xff, a.page_bytes);  // who still reads it gets NaN
        close(a.file);
    }
    unmap_pages(a);
    used -= a.bytes;
    allocations().erase(found);
    return kSuccess;
}
EXPORT int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    if (const int status = usable()) return status;
    *total = limit();
    *free = limit() - std::min(limit(), used);
    return kSuccess;
}

EXPORT int cuMemHostAlloc(void** address, std::size_t bytes, unsigned) {
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
EXPORT int cuMemFreeHost(void* address) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    finish_all();
    if (pinned.erase(reinterpret_cast<Address>(address)) == 0) return kInvalidValue;
    std::free(address);
    return kSuccess;
}

EXPORT int cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, Stream* stream) {
    return copy(stream, device(to), host(from), bytes);
}
EXPORT int cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, Stream* stream) {
    return copy(stream, host(to), device(from), bytes);
}
EXPORT int cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t bytes, Stream* stream) {
    return copy(stream, device(to), device(from), bytes);
}
EXPORT int cuMemsetD8Async(Address to, unsigned char value, std::size_t count, Stream* stream) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    if (const int status = usable()) return status;
    if (!is_device_memory(to, count)) return kInvalidValue;
    return enqueue(stream, kFillNode, [=] {
        std::memset(reinterpret_cast<void*>(to), value, count);
        return int(kSuccess);
    });
}

}  // namespace fake_cuda
