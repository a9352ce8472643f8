// Compiled kernels on disk as mdcg/runtime/cache.py writes them: where they are, which ones are
// trusted, a folder of this process where the cache cannot be written or not be trusted.
#pragma once

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "core/shared_library.hpp"
#include "core/text.hpp"
#include "core/trusted_files.hpp"

namespace mdcg {

// A kernel cannot be had: no compiler, it rejected the text, or compiling is forbidden.
struct KernelError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Variables of the environment, read when they are needed: see mdcg/env.py.
std::string variable(const char* name);  // empty: not set
std::string kernel_cache_root();         // an absolute path
bool jit_disabled();

// A binary of the cache. Its file stays open, so that what was checked is what is loaded.
struct CachedKernel {
    TrustedFile file;
    std::string folder;
    std::string binary;  // what the file holds

    std::shared_ptr<SharedLibrary> load() const;
};
using CachedKernelPtr = std::shared_ptr<CachedKernel>;

// <root>/<version>/<target>/<key>/ holds a binary beside kernel.sha256, and what it was made from.
class KernelCache {
public:
    // `target` is a sub-folder, such as "x86-64-v3"; `binary` the file that makes a folder
    // complete.
    explicit KernelCache(std::string target, std::string binary = "kernel.so");

    // A kernel that exists, is complete, and could not have been written by another user; or null.
    CachedKernelPtr find(const std::string& key) const;
    // Removes the folder of a kernel that proved unusable.
    static void discard(const std::string& folder);

    // The folder in which this process makes kernels: <root>/<version>, or, where that cannot be
    // written or not be trusted, a folder that is removed when the process ends. It holds the
    // folders "locks", "tmp" and that of the target.
    std::string writable_folder() const;
    // The file in that folder which is locked while a kernel is made.
    std::string lock_file(const std::string& folder, const std::string& name) const;

    // Why kernels in the present root are not used, or are not kept there; empty: all is well.
    static std::string warning();

private:
    std::string target_, binary_;
};

// The right to make kernels, held by one process, or thread, while others wait. It ends with the
// process. The file names the holder, or holds the sentence that the last one failed with.
class FileLock {
public:
    // Waits for the holder, and says so (notice.hpp) where that takes long. Nothing is held where
    // it takes longer than MDCG_COMPILE_TIMEOUT, or where the file system has no locks: kernels are
    // moved into place whole, so that two processes may make the same ones. Throws KernelError
    // where the file cannot be opened or the variable is no number, and Interrupted.
    explicit FileLock(const std::string& path);
    ~FileLock() { release(); }
    FileLock(const FileLock&) = delete;
    FileLock& operator=(const FileLock&) = delete;

    bool held() const { return file_.has_value(); }
    void release();
    // What the last holder failed with while this one waited; empty: it did not fail.
    const std::string& failure() const { return failure_; }
    // Leaves a sentence for those that wait.
    void fail(const std::string& sentence) const;

private:
    void write(const std::string& text) const;
    std::string failure_;
    std::optional<Descriptor> file_;
};

// The seconds that a compiler may take, and those that others wait for its kernels, as
// mdcg/env.py reads them. Throws KernelError.
int compile_timeout();

// A name in this host that a lock on another host cannot have.
std::string host_name();

}  // namespace mdcg
