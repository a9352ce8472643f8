#include "core/shared_library.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace mdcg {

namespace {

std::string loader_message() {
    const char* text = dlerror();
    return text != nullptr ? text : "unknown reason";
}

// An open file that closes itself.
struct File {
    int descriptor;
    ~File() {
        if (descriptor >= 0) close(descriptor);
    }
};

bool write_all(int descriptor, const void* data, std::size_t bytes) {
    const char* p = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t done = write(descriptor, p, bytes);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        p += done;
        bytes -= static_cast<std::size_t>(done);
    }
    return true;
}

// A path of the descriptor that no other load has: the loader takes a path that it has seen for
// the library that it has, though descriptors are used again.
std::string unique_path(int descriptor) {
    static std::atomic<std::uint32_t> count{0};
    std::string path = "/proc/self/fd/";
    for (std::uint32_t n = count++, bit = 0; bit < 32; ++bit) path += (n >> bit & 1) ? "./" : "/";
    return path + std::to_string(descriptor);
}

}  // namespace

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
    std::string why;
#ifdef MFD_CLOEXEC
    {
        const File file{memfd_create("mdcg-kernel", MFD_CLOEXEC)};
        if (file.descriptor >= 0 && write_all(file.descriptor, data, bytes)) {
            try {
                return std::shared_ptr<SharedLibrary>(
                    new SharedLibrary(unique_path(file.descriptor), name, 0));
            } catch (const std::runtime_error& error) {
                why = error.what();
            }
        }
    }
#endif
    // systems without memory files, without /proc, or that forbid to execute them
    const char* folder = std::getenv("TMPDIR");
    std::string path =
        std::string(folder != nullptr && *folder != 0 ? folder : "/tmp") + "/mdcg-XXXXXX";
    const File file{mkostemp(path.data(), O_CLOEXEC)};
    if (file.descriptor < 0)
        throw std::runtime_error("cannot load " + name + ": no file can be made in " + path + ": " +
                                 std::strerror(errno) + (why.empty() ? "" : "; " + why));
    struct Remover {
        const std::string& path;
        ~Remover() { unlink(path.c_str()); }
    } remover{path};
    if (!write_all(file.descriptor, data, bytes))
        throw std::runtime_error("cannot load " + name + ": writing " + path +
                                 " failed: " + std::strerror(errno));
    return std::shared_ptr<SharedLibrary>(new SharedLibrary(path, name, 0));
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
