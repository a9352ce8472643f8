// Memory that processes share. A handle tells where another process finds the pages of
// an allocation: in a file without a name that its owner keeps open.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "fake_cuda.hpp"

namespace fake_cuda {

namespace {

// CUipcMemHandle
struct Handle {
    char mark[8];
    int process, file;
    unsigned long long file_number;
    std::size_t bytes, page_bytes, offset;  // `offset` of the allocation in its pages
    int device;
    char unused[12];
};
static_assert(sizeof(Handle) == 64);

constexpr char kMark[8] = {'e', 'm', 'u', 'l', 'a', 't', 'e', 'd'};

// The handles that are open in this process, by the address of their memory.
std::map<Address, Handle> handles;

bool variable_is(const char* name, const char* value) {
    const char* const text = std::getenv(name);
    return text != nullptr && std::strcmp(text, value) == 0;
}

// Moves the pages of an allocation to a file, where other processes can map them; addresses and
// what they hold stay.
int share(Allocation& a) {
    if (a.file >= 0) return kSuccess;
    const int file = memfd_create("emulated-device-memory", MFD_CLOEXEC);
    if (file < 0) return kOutOfMemory;
    void* copied = MAP_FAILED;
    if (ftruncate(file, static_cast<off_t>(a.page_bytes)) == 0)
        copied = mmap(nullptr, a.page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (copied != MAP_FAILED) {
        std::memcpy(copied, a.pages, a.page_bytes);
        const int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
        if (mremap(copied, a.page_bytes, a.page_bytes, flags, a.pages) != MAP_FAILED) {
            a.file = file;
            return kSuccess;
        }
        munmap(copied, a.page_bytes);
    }
    close(file);
    return kOutOfMemory;
}

// Opens the file of a handle; -1 if the file or its owner no longer exists.
int open_pages(const Handle& handle) {
    const std::string path =
        "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return -1;
    struct stat found;
    if (fstat(file, &found) == 0 && found.st_ino == handle.file_number &&
        static_cast<std::size_t>(found.st_size) == handle.page_bytes)
        return file;
    close(file);
    return -1;
}

int map_handle(Address* address, const Handle& handle) {
    const int file = open_pages(handle);
    if (file < 0) return kMapFailed;
    char* const pages = reserve_pages(handle.page_bytes);
    const bool mapped = pages != nullptr && mmap(pages, handle.page_bytes, PROT_READ | PROT_WRITE,
                                                 MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED;
    close(file);
    Allocation made{handle.bytes, pages, handle.page_bytes, handle.device};
    made.opened = 1;
    if (!mapped) {
        if (pages != nullptr) unmap_pages(made);
        return kMapFailed;
    }
    *address = reinterpret_cast<Address>(pages + handle.offset);
    allocations()[*address] = made;
    handles[*address] = handle;
    return kSuccess;
}

}  // namespace

// The base of what contains an address, and its size; each may be null.
EXPORT int cuMemGetAddressRange_v2(Address* base, std::size_t* bytes, Address address) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    if (const int status = usable()) return status;
    const auto found = find_allocation(address);
    if (found == allocations().end()) return kNotFound;
    if (base != nullptr) *base = found->first;
    if (bytes != nullptr) *bytes = found->second.bytes;
    return kSuccess;
}

// Makes a handle of the whole allocation that contains the address.
EXPORT int cuIpcGetMemHandle(Handle* handle, Address address) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    if (const int status = usable()) return status;
    if (variable_is("EMULATED_CUDA_IPC", "0")) return kNotSupported;
    if (const int status = outside_capture()) return status;
    const auto found = find_allocation(address);
    if (handle == nullptr || found == allocations().end()) return kInvalidValue;
    Allocation& a = found->second;
    if (a.opened != 0) return kInvalidValue;
    if (const int status = share(a)) return status;
    struct stat file;
    if (fstat(a.file, &file) != 0) return kOutOfMemory;
    *handle = {};
    std::memcpy(handle->mark, kMark, sizeof kMark);
    handle->process = getpid();
    handle->file = a.file;
    handle->file_number = file.st_ino;
    handle->bytes = a.bytes;
    handle->page_bytes = a.page_bytes;
    handle->offset = found->first - reinterpret_cast<Address>(a.pages);
    handle->device = a.device;
    return kSuccess;
}
EXPORT int cuIpcOpenMemHandle_v2(Address* address, Handle handle, unsigned flags) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    if (const int status = usable()) return status;
    if (variable_is("EMULATED_CUDA_IPC", "0")) return kNotSupported;
    if (const int status = outside_capture()) return status;
    // the only flag, which is required
    if (address == nullptr || flags != 1) return kInvalidValue;
    if (std::memcmp(handle.mark, kMark, sizeof kMark) != 0) return kInvalidValue;
    if (handle.process == getpid()) return kInvalidContext;
    if (variable_is("EMULATED_CUDA_IPC", "export")) return kMapFailed;
    for (const auto& [mapped, other] : handles) {
        if (std::memcmp(&other, &handle, sizeof handle) != 0) continue;
        ++allocations()[mapped].opened;
        *address = mapped;
        return kSuccess;
    }
    return map_handle(address, handle);
}
EXPORT int cuIpcCloseMemHandle(Address address) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    if (const int status = usable()) return status;
    if (const int status = outside_capture()) return status;
    const auto found = allocations().find(address);
    if (found == allocations().end() || found->second.opened == 0) return kInvalidValue;
    finish_all();
    if (--found->second.opened != 0) return kSuccess;
    unmap_pages(found->second);
    allocations().erase(found);
    handles.erase(address);
    return kSuccess;
}

}  // namespace fake_cuda
