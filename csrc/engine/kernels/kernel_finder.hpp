// Where the compiled kernels of a package come from: a file that the user names, the cache, or
// Python, which is started once on a machine to make them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/kernels/kernel_file.hpp"
#include "engine/package/package.hpp"

namespace mdcg {

// What is asked for: "auto", "generic" or "generated", or the name of a file.
struct KernelChoice {
    enum Mode {
        automatic,  // generic where no other can be had; the report says why
        generic,    // no code is loaded
        generated,  // an error where generic ones would run
    };
    Mode mode = automatic;
    std::string file;  // empty: the cache

    // "" is "auto"; throws EngineError.
    static KernelChoice parse(const std::string& text);
};

// The interpreter that runs in this process, where there is one: the first choice after
// $MDCG_PYTHON.
void set_python(const std::string& path);

struct FoundKernels {
    std::shared_ptr<const KernelFile> file;  // null: see why
    std::string target;
    std::string origin;  // named, cached, compiled
    std::string why;     // there are none: one sentence
    std::string by;      // "PYTHON -m mdcg kernels", where they were made now
    double seconds = 0;  // that this took
};

// "kernels: 3 cached", or what runs instead and why.
std::string kernel_summary(const FoundKernels& found, std::size_t loaded, std::size_t generic);

class KernelFinder {
public:
    KernelFinder(std::shared_ptr<const Package> package, KernelChoice choice);

    const KernelChoice& choice() const { return choice_; }
    // Kernels for this CPU, or for a device of a compute capability such as 90. Those of the cache
    // are made where they are missing. Throws EngineError where a file is named that does not fit,
    // and Interrupted where the host ends the wait.
    FoundKernels for_host();
    FoundKernels for_device(int capability, const std::string& precision);
    // Makes kernels of the cache again that proved unusable.
    FoundKernels again(const FoundKernels& unusable, const std::string& precision);

    // For the summary before kernels are loaded, for this CPU (capability 0) or for a device: says
    // whether Python will be started.
    std::string outlook(int capability, const std::string& precision) const;

    // "python -m mdcg kernels water.mdcg --target sm_90"
    std::string command(const std::string& target, const std::string& precision) const;

private:
    FoundKernels named(const std::string& own, const std::vector<std::string>& targets,
                       const std::string& precision) const;
    FoundKernels cached(const std::string& target, const std::string& precision) const;
    FoundKernels cached(const std::vector<std::string>& targets,
                        const std::string& precision) const;
    FoundKernels make(const std::string& target, const std::string& precision, bool again) const;

    std::shared_ptr<const Package> package_;
    KernelChoice choice_;
    mutable std::string text_;  // of the problem
    const std::string& problem() const;
};

}  // namespace mdcg
