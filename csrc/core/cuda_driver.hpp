// The CUDA driver, opened when it is needed: devices, loaded kernels, launches.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/shared_library.hpp"

namespace mdcg {

// Stands for the absence of a device, where the kernels of a package are only listed.
constexpr int NO_DEVICE = -1;

// What the driver refused, with its number (CUresult).
class CudaError : public std::runtime_error {
public:
    // `complete`: the text also says what to do.
    CudaError(int code, const std::string& text, bool complete = false)
        : std::runtime_error(text), code_(code), complete_(complete) {}
    int code() const { return code_; }
    bool complete() const { return complete_; }

private:
    int code_;
    bool complete_;
};

// CUresults that are handled.
constexpr int CUDA_INVALID_VALUE = 1, CUDA_OUT_OF_MEMORY = 2, CUDA_NOT_FOUND = 500;

class CudaDriver {
public:
    // The process-wide driver; throws std::runtime_error where there is none, and CudaError where
    // it cannot begin.
    static const CudaDriver& get();

    int device_count() const;
    std::string device_name(int device) const;

    // Compute capability of a device, as 10 * major + minor.
    int compute_capability(int device) const;

    // The same for the same device in all processes.
    std::array<unsigned char, 16> device_uuid(int device) const;

    // Version of CUDA the driver is made for, as 1000 * major + 10 * minor.
    int version() const;
    std::string version_text() const;  // "CUDA 12.4"
    // The same without starting it; 0 where there is none.
    static int version_there();

    // Throws CudaError with the driver's message.
    void check(int status, const char* what) const;

    // Throws CudaError where the driver is too old to have it.
    template <typename Function>
    Function symbol(const char* name) const {
        return reinterpret_cast<Function>(address(name));
    }
    // Null if the driver is too old.
    template <typename Function>
    Function find(const char* name) const {
        return reinterpret_cast<Function>(library_.find(name));
    }

private:
    CudaDriver();
    void* address(const char* name) const;
    SharedLibrary library_;
};

// Makes a device's primary context current, and the earlier one again at the end of the scope.
class CudaScope {
public:
    explicit CudaScope(int device);
    ~CudaScope();
    CudaScope(const CudaScope&) = delete;
    CudaScope& operator=(const CudaScope&) = delete;
};

// Enqueues a kernel whose only parameter is the struct at `arguments`, in a current context. With
// `early` it may start once all blocks of the kernel before it have let it, where the driver can do
// that. `what` is for errors. Throws CudaError, also where a grid cannot have so many blocks.
void launch_kernel(std::uintptr_t function, std::int64_t blocks, int threads, int shared_bytes,
                   std::uintptr_t stream, const void* arguments, bool early, const char* what);

// Machine code loaded on one device.
class CudaModule {
public:
    CudaModule(int device, const std::string& cubin);
    ~CudaModule();
    CudaModule(const CudaModule&) = delete;
    CudaModule& operator=(const CudaModule&) = delete;

    // Address of a kernel, allowed to use that many bytes of dynamic shared memory.
    std::uintptr_t function(const std::string& name, int shared_bytes) const;

    // Registers per thread, bytes of local memory per thread, bytes of static shared memory.
    std::array<int, 3> resources(std::uintptr_t function) const;

    // As launch_kernel; the struct is one of 64-bit values.
    void launch(std::uintptr_t function, std::int64_t blocks, int threads, int shared_bytes,
                std::uintptr_t stream, const std::vector<std::int64_t>& arguments,
                bool early) const;

private:
    int device_;
    void* module_ = nullptr;
};

}  // namespace mdcg
