// Kernels of the CUDA back end by name: fixed text of the engine, and text of the package.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/cuda_driver.hpp"
#include "core/cuda_kernels.hpp"
#include "core/cuda_memory.hpp"

namespace mdcg {

class CudaBundle;
class CudaProgram;  // a text with its module, see kernels.cpp

// A kernel whose only parameter is a struct.
class CudaFunction {
public:
    CudaFunction() = default;
    CudaFunction(std::shared_ptr<CudaProgram> program, const std::string& kernel, int shared_bytes);

    // `arguments` is copied at once. `blocks` 0: nothing is launched.
    template <typename Arguments>
    void launch(const CudaStream& stream, std::int64_t blocks, int threads,
                const Arguments& arguments, int shared_bytes = 0) const {
        launch_bytes(stream, blocks, threads, shared_bytes, &arguments);
    }
    // Arguments as 64-bit values, as generated kernels take them.
    void launch(const CudaStream& stream, std::int64_t blocks, int threads, int shared_bytes,
                const std::vector<std::int64_t>& arguments) const {
        launch_bytes(stream, blocks, threads, shared_bytes, arguments.data());
    }

private:
    struct Entry {
        std::shared_ptr<CudaProgram> program;
        std::string kernel;
        int shared_bytes = 0;
        std::uintptr_t function = 0;  // found by the first launch
    };
    void launch_bytes(const CudaStream& stream, std::int64_t blocks, int threads, int shared_bytes,
                      const void* arguments) const;

    std::shared_ptr<Entry> entry_;
};

// A text that is run on a device.
struct CudaText {
    std::string key;   // cuda_kernel_key
    std::string name;  // of one of its kernels
    CudaSource source;
};

// How float products with weights are computed. `strict`: as float; the others round what is
// multiplied to 11 or 8 bits, and sum in float.
enum class CudaPrecision { strict, tf32, bf16 };
const char* name_of(CudaPrecision precision);  // "tf32"; of strict: ""

// What kernels are for.
struct CudaPlace {
    int device = 0;                                 // or NO_DEVICE: texts are asked for, and listed
    int capability = 0;                             // 90 for sm_90; 0: what the device has
    std::shared_ptr<const CudaBundle> bundle = {};  // of the package; null: none
    CudaPrecision precision = CudaPrecision::strict;
};

// Compiles and loads for one device and one precision; each text once. Functions can be asked for
// before they can be had: `load` compiles all texts side by side.
class CudaKernels {
public:
    // `item_bytes` 4: T is float; 8: double.
    CudaKernels(const CudaPlace& place, int item_bytes);
    CudaKernels(int device, int item_bytes) : CudaKernels(CudaPlace{device}, item_bytes) {}

    int device() const { return place_.device; }
    int item_bytes() const { return item_bytes_; }
    int compute_capability() const { return place_.capability; }
    CudaPrecision precision() const { return place_.precision; }

    // Text in T without any includes; "typedef float T; typedef long long Long;" and
    // text/common.cuh are put before it. `defines` are lines put before everything.
    CudaFunction fixed(const char* text, const std::string& kernel, const std::string& defines = "",
                       int shared_bytes = 0);
    // A whole program, as a package has it.
    CudaFunction program(const std::string& text, const std::string& kernel, int shared_bytes,
                         const std::vector<std::string>& options);

    // All texts asked for until now: from the package's machine code, the cache, the compiler.
    // Throws EngineError (ErrorKind::compiler).
    void load();
    std::vector<CudaText> texts() const;  // asked for until now

    // JSON array for the report.
    std::string report() const;
    // "kernels: 3 cached, 2 compiled"
    std::string summary() const;

private:
    std::shared_ptr<CudaProgram> find(CudaSource source, const std::string& kernel);

    CudaPlace place_;
    int item_bytes_;
    std::map<std::string, std::shared_ptr<CudaProgram>> programs_;  // by text and options
};

}  // namespace mdcg
