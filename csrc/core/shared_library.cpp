#include "core/shared_library.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "core/files.hpp"

namespace mdcg {

namespace {

std::string loader_message() {
    const char* text = dlerror();
    return text != nullptr ? text : "unknown reason";
}

// A path for the descriptor that no earlier load used. The loader identifies libraries by path, and
// numbers of descriptors are reused.
std::string unique_path(int descriptor) {
    static std::atomic<std::uint32_t> count{0};
    std::string path = "/proc/self/fd/";
    for (std::uint32_t n = count++, bit = 0; bit < 32; ++bit) path += (n >> bit & 1) ? "./" : "/";
    return path + std::to_string(descriptor);
}

}  // namespace

bool is_cut_short(const void* data, std::size_t bytes) {
    Elf64_Ehdr header;
    if (bytes < SELFMAG || std::memcmp(data, ELFMAG, SELFMAG) != 0) return false;
    if (bytes < sizeof(header)) return true;
    std::memcpy(&header, data, sizeof(header));
    if (header.e_ident[EI_CLASS] != ELFCLASS64) return false;
    const auto beyond = [&](std::uint64_t start, std::uint64_t length) {
        return start > bytes || length > bytes - start;
    };
    if (beyond(header.e_shoff, std::uint64_t(header.e_shnum) * header.e_shentsize) ||
        beyond(header.e_phoff, std::uint64_t(header.e_phnum) * sizeof(Elf64_Phdr)))
        return true;
    for (std::uint64_t i = 0; i < header.e_phnum; ++i) {
        Elf64_Phdr segment;
        std::memcpy(&segment, static_cast<const char*>(data) + header.e_phoff + i * sizeof(segment),
                    sizeof(segment));
        if (beyond(segment.p_offset, segment.p_filesz)) return true;
    }
    return false;
}

SharedLibrary::SharedLibrary(const std::string& path) : SharedLibrary(path, path, 0) {}

SharedLibrary SharedLibrary::lasting(const std::string& path) {
    return SharedLibrary(path, path, RTLD_NODELETE);
}

SharedLibrary::SharedLibrary(const std::string& path, const std::string& name, int flags)
    : path_(name), handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | flags)) {
    if (handle_ == nullptr)
        throw std::runtime_error("cannot load " + name + ": " + loader_message());
}

SharedLibrary::~SharedLibrary() { dlclose(handle_); }

std::shared_ptr<SharedLibrary> SharedLibrary::from_memory(const void* data, std::size_t bytes,
                                                          const std::string& name) {
    if (is_cut_short(data, bytes)) throw std::runtime_error(name + " is cut short");
    try {
        const Descriptor file = unnamed_file(data, bytes, true);
        return std::shared_ptr<SharedLibrary>(
            new SharedLibrary(unique_path(file.number()), name, 0));
    } catch (const std::runtime_error&) {  // systems that forbid to execute memory files
        const Descriptor file = unnamed_file(data, bytes, false);
        return std::shared_ptr<SharedLibrary>(
            new SharedLibrary(unique_path(file.number()), name, 0));
    }
}

std::shared_ptr<SharedLibrary> SharedLibrary::from_file(int descriptor, const std::string& content,
                                                        const std::string& name) {
    try {
        return std::shared_ptr<SharedLibrary>(new SharedLibrary(unique_path(descriptor), name, 0));
    } catch (const std::runtime_error&) {  // folders that forbid execution
        return from_memory(content.data(), content.size(), name);
    }
}

void* SharedLibrary::find(const std::string& name) const noexcept {
    return dlsym(handle_, name.c_str());
}

void* SharedLibrary::symbol(const std::string& name) const {
    dlerror();
    void* address = dlsym(handle_, name.c_str());
    if (address == nullptr)
        throw std::runtime_error("no symbol " + name + " in " + path_ + ": " + loader_message());
    return address;
}

}  // namespace mdcg
