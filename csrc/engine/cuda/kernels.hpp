// Kernels of the CUDA back end by name: fixed text of the engine, and text of the package.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/cuda_driver.hpp"
#include "core/cuda_memory.hpp"

namespace mdcg {

// A kernel whose only parameter is a struct.
class CudaFunction {
public:
    CudaFunction() = default;
    CudaFunction(std::shared_ptr<const CudaModule> module, std::uintptr_t function)
        : module_(std::move(module)), function_(function) {}

    // `arguments` is copied at once. `blocks` 0: nothing is launched.
    template <typename Arguments>
    void launch(const CudaStream& stream, std::int64_t blocks, int threads,
                const Arguments& arguments, int shared_bytes = 0) const {
        launch_bytes(stream, blocks, threads, shared_bytes, &arguments, sizeof(Arguments));
    }
    // Arguments as 64-bit values, as generated kernels take them.
    void launch(const CudaStream& stream, std::int64_t blocks, int threads, int shared_bytes,
                const std::vector<std::int64_t>& arguments) const;

private:
    void launch_bytes(const CudaStream& stream, std::int64_t blocks, int threads, int shared_bytes,
                      const void* arguments, std::size_t bytes) const;

    std::shared_ptr<const CudaModule> module_;
    std::uintptr_t function_ = 0;
};

// Compiles and loads for one device and one precision; each text once.
class CudaKernels {
public:
    // `item_bytes` 4: T is float; 8: double.
    CudaKernels(int device, int item_bytes);

    int device() const { return device_; }
    int compute_capability() const { return capability_; }

    // Text in T without any includes; "typedef float T; typedef long long Long;" and
    // text/common.cuh are put before it. `defines` are lines put before everything.
    CudaFunction fixed(const char* text, const std::string& kernel,
                       const std::string& defines = "");
    // A whole program, as a package has it, or its machine code for this device.
    CudaFunction program(const std::string& text, const std::string& kernel, int shared_bytes,
                         const std::vector<std::string>& options);
    // JSON array for the report.
    std::string report() const;

private:
    std::shared_ptr<const CudaModule> module(const std::string& text,
                                             const std::vector<std::string>& options);

    int device_, item_bytes_, capability_;
    std::map<std::string, std::shared_ptr<const CudaModule>> modules_;  // by text and options
    double seconds_ = 0;                                                // of the compiler
};

}  // namespace mdcg
