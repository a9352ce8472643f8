// Compiled kernels on disk, shared with mdcg/runtime/cache.py: content key, digest, lock, atomic
// rename, a folder of this process where the cache cannot be written.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace mdcg {

// A kernel cannot be had: no compiler, it rejected the text, or compiling is forbidden.
struct KernelError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Variables of the environment, read when they are needed: see mdcg/env.py.
std::string variable(const char* name);  // empty: not set
std::string kernel_cache_root();
bool jit_disabled();

// <root>/<version>/<target>/<key>/ holds kernel.cpp beside kernel.so and kernel.sha256, or
// kernel.cu beside kernel.cubin.
class KernelCache {
public:
    // `target` is a sub-folder, such as "x86-64-v3"; `binary` the file that makes a folder
    // complete.
    explicit KernelCache(std::string target, std::string binary = "kernel.so");

    const std::string& target() const { return target_; }

    // 32 hexadecimal digits of texts, the same in Python.
    static std::string key(const std::vector<std::string>& texts);

    // Folder of a kernel that is there and whole, or nothing.
    std::string find(const std::string& key) const;
    void discard(const std::string& key) const;

    // Held while a kernel is made; other processes wait for it.
    class Lock {
    public:
        Lock(std::string root, int descriptor) : root_(std::move(root)), descriptor_(descriptor) {}
        ~Lock();
        Lock(const Lock&) = delete;
        Lock& operator=(const Lock&) = delete;
        const std::string& root() const { return root_; }

    private:
        std::string root_;
        int descriptor_;  // -1: the file system has no locks
    };
    // Null while another process holds it, unless `wait`.
    std::unique_ptr<Lock> lock(const std::string& key, bool wait) const;

    // Calls `build(empty_folder)`, which has to leave the binary there, and gives the folder its
    // name: it appears whole or not at all. Returns the folder.
    std::string make(const Lock& lock, const std::string& key,
                     const std::function<void(const std::string&)>& build) const;

    // Whether kernels of this process go to a folder that is removed when it ends.
    static bool is_private();

private:
    std::string target_, binary_;
};

// Content of a file; throws std::runtime_error.
std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& content);

}  // namespace mdcg
