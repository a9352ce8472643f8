// The cache of compiled kernels on disk: it finds kernels, checks who could have written them, and
// makes each kernel once for all processes.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/shared_library.hpp"
#include "core/trusted_files.hpp"

namespace mdcg {

// There is no kernel: no compiler was found, it rejected the text, or compiling is forbidden.
struct KernelError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Environment variables, read when they are needed; mdcg/env.py describes them.
std::string variable(const char* name);  // empty: not set
std::string kernel_cache_root();         // an absolute path
bool jit_disabled();
// Seconds that a compiler may take, and that other processes wait for its kernels. Throws
// KernelError if the variable is not a number.
int compile_timeout();

// A binary of the cache. Its file stays open, so that what was checked is what is loaded.
struct CachedKernel {
    TrustedFile file;
    std::string folder;
    std::string binary;  // contents of the file

    std::shared_ptr<SharedLibrary> load() const;
};
using CachedKernelPtr = std::shared_ptr<CachedKernel>;

// The cache holds <root>/<version>/<target>/<key>/ for each kernel: the binary, kernel.sha256 with
// its digest, and the text it was compiled from. A user can send such a folder with a report. Keys
// depend on texts and compiler flags alone, so a cached kernel loads on a machine without a
// compiler.
class KernelCache {
public:
    // Writes the binary into an empty folder. Throws KernelError, or std::system_error if a file
    // cannot be written.
    using Build = std::function<void(const std::string& folder)>;

    // `target` names a folder, such as "x86-64-v3"; `binary` is the file that makes an entry
    // complete.
    KernelCache(std::string target, std::string binary);

    // 32 hexadecimal digits.
    static std::string key(const std::vector<std::string>& texts);

    // A kernel that is complete and that no other user could have written; or null.
    CachedKernelPtr find(const std::string& key) const;
    // Removes a kernel that proved unusable.
    void discard(const std::string& key) const;
    // Returns the kernel, and calls `build` if no other process has made it. Processes that ask at
    // once build it once: the others wait, say for whom (notice.hpp) if that takes long, and fail
    // with the KernelError of the one that built. After compile_timeout(), or on a file system
    // without locks, a process builds without the lock: entries appear whole or not at all. Throws
    // KernelError, Interrupted, and what `build` throws.
    CachedKernelPtr make(const std::string& key, const Build& build) const;

    // Why kernels of the current root are not used, or not kept there; empty: they are.
    static std::string warning();
    // Why new kernels are not kept in the current root; empty: they are. Makes the root's folders.
    static std::string why_not_kept();

private:
    std::string target_, binary_;
};

}  // namespace mdcg
