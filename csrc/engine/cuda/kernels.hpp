// Kernels of the CUDA back end by name: fixed text of the engine, and generated programs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/device.hpp"
#include "core/integers.hpp"
#include "engine/kernels/kernel_finder.hpp"

namespace mdcg {

class CudaProgram;  // a text and its module, see kernels.cpp

// A kernel whose only parameter is a struct.
class CudaFunction {
public:
    CudaFunction() = default;
    CudaFunction(std::shared_ptr<CudaProgram> program, const std::string& kernel, int shared_bytes);

    // `arguments` is copied at once. `blocks` 0: nothing is launched.
    template <typename Arguments>
    void launch(const DeviceStream& stream, std::int64_t blocks, int threads,
                const Arguments& arguments, int shared_bytes = 0) const {
        launch_bytes(stream, blocks, threads, shared_bytes, &arguments);
    }
    // Launches as many blocks as `items` threads take.
    template <typename Arguments>
    void cover(const DeviceStream& stream, std::int64_t items, int threads,
               const Arguments& arguments) const {
        launch_bytes(stream, ceil_div(items, threads), threads, 0, &arguments);
    }
    // Arguments as 64-bit values, as generated kernels take them.
    void launch(const DeviceStream& stream, std::int64_t blocks, int threads, int shared_bytes,
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
    void launch_bytes(const DeviceStream& stream, std::int64_t blocks, int threads,
                      int shared_bytes, const void* arguments) const;

    std::shared_ptr<Entry> entry_;
};

// The text of csrc/kernels/FILE with its includes, which the build embeds (csrc/kernels/embed.py).
// Throws std::logic_error if there is none.
const char* kernel_source(const std::string& file);

// The text of a program for devices.
struct CudaKernelSource {
    std::string key;   // text_key
    std::string name;  // name of one of its kernels
    std::string text;  // empty: a program that Python has written
};

// Where machine code comes from.
class CudaCode {
public:
    virtual ~CudaCode() = default;
    // The kernel file, which also describes passes. It is made now if it is missing.
    virtual const KernelFile& file() = 0;
    // Machine code of all texts for a compute capability, in order. Throws EngineError.
    virtual std::vector<std::string> find(const std::vector<CudaKernelSource>& texts,
                                          int capability) = 0;
    // Called after the device refused what was found: makes it again if that can help.
    virtual bool make_again() { return false; }
    virtual const FoundKernels& found() const = 0;
    // The summary while kernels are not loaded.
    virtual std::string outlook() const { return "kernels: not loaded"; }
};
using CudaCodePtr = std::shared_ptr<CudaCode>;

// The device that kernels are for.
struct CudaTarget {
    int device = 0;      // or NO_DEVICE: kernels are only listed
    int capability = 0;  // 90 for sm_90; 0: the device's own
    CudaCodePtr code = {};
};

// Machine code of the kernels that evaluations of a package run.
CudaCodePtr code_of(std::shared_ptr<const Package> package, KernelChoice choice, int capability);
// No machine code, only the descriptions of passes, for listing texts.
CudaCodePtr code_of(KernelFile file);

// The kernels of one device; each text is loaded once. Callers first ask for all functions that
// they need, then `load` finds and loads all programs at once.
class CudaKernels {
public:
    // `item_bytes` 4: T is float; 8: double.
    CudaKernels(const CudaTarget& place, int item_bytes);

    int device() const { return place_.device; }
    int item_bytes() const { return item_bytes_; }
    int compute_capability() const { return place_.capability; }
    int multiprocessors() const;  // at least 1
    const KernelFile& file() { return place_.code->file(); }

    // A kernel of csrc/kernels/FILE, for T of this class; `defines` are lines put before the file.
    CudaFunction fixed(const std::string& file, const std::string& kernel,
                       const std::string& defines = "", int shared_bytes = 0);
    // A kernel of a program that Python has written, by the program's key.
    CudaFunction program(const std::string& key, const std::string& kernel, int shared_bytes);

    // Loads what was asked for until now. Throws EngineError (ErrorKind::compiler).
    void load();
    std::vector<CudaKernelSource> texts() const;  // what `fixed` was asked for until now

    // Array for the report.
    nlohmann::json report() const;
    // "kernels: 5 cached"
    std::string summary() const;

private:
    CudaFunction function(CudaKernelSource text, int shared_bytes);

    CudaTarget place_;
    int item_bytes_;
    std::map<std::string, std::shared_ptr<CudaProgram>> programs_;  // by key
};

}  // namespace mdcg
