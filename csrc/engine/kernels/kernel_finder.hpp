// Finds the compiled kernels of a package: in a file that the user names, in the cache, or by
// starting Python, which makes them once per machine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/kernels/kernel_file.hpp"
#include "engine/package/package.hpp"

namespace mdcg {

// The user's choice: "auto", "generic", "generated", or the name of a file.
struct KernelChoice {
    enum Mode {
        automatic,  // generated kernels; if there are none, generic ones, and the report says why
        generic,    // no code is loaded
        generated,  // generated kernels; if there are none, an error
    };
    Mode mode = automatic;
    std::string file;  // empty: the cache

    // An empty text means "auto". Throws EngineError.
    static KernelChoice parse(const std::string& text);
};

// Names the interpreter that runs in this process. It makes kernels unless MDCG_PYTHON names one.
void set_python(const std::string& path);

struct FoundKernels {
    std::shared_ptr<const KernelFile> file;  // null: see why
    std::string target;
    std::string origin;  // named, cached, or made now
    std::string why;     // one sentence, if there are none
    std::string by;      // "PYTHON -m mdcg kernels", if they were made now
    double seconds = 0;  // which took this long
};

// "kernels: 3 cached", or what runs instead and why.
std::string kernel_summary(const FoundKernels& found, std::size_t loaded, std::size_t generic);

// Why no kernels run on a device, which is older than the oldest that they are made for.
std::string too_old(int capability, int oldest);

class KernelFinder {
public:
    // Kernels for this CPU (capability 0), or for a device of a compute capability such as 90.
    // Throws EngineError if a file is named that does not fit.
    KernelFinder(std::shared_ptr<const Package> package, KernelChoice choice, int capability = 0);

    const KernelChoice& choice() const { return choice_; }
    // Finds the kernels, unless an earlier call has found them. Kernels that are missing in the
    // cache are made. Throws EngineError if the device is too old, and Interrupted if the host ends
    // the wait.
    const FoundKernels& find();
    // The result of the last find() or make_again().
    const FoundKernels& found() const { return found_; }
    // Makes kernels of the cache again, once, after they proved unusable. Returns false if that
    // cannot help.
    bool make_again();
    // The summary while kernels are not loaded. It says whether Python will be started.
    std::string outlook() const;
    // "python -m mdcg kernels water.mdcg --target sm_90"
    std::string command(const std::string& target) const;

private:
    const std::string& problem() const;
    FoundKernels named() const;
    FoundKernels cached() const;
    FoundKernels cached(const std::string& target) const;
    FoundKernels make(const std::string& target, bool again) const;
    // Lets Python write kernels into a folder, and returns the command. Throws KernelError.
    std::string run_python(const std::string& target, bool again, const std::string& folder) const;
    // Returns null if the file is damaged, or its kernels belong to another package.
    std::shared_ptr<const KernelFile> read(std::string content, const std::string& path) const;

    std::shared_ptr<const Package> package_;
    KernelChoice choice_;
    std::vector<std::string> targets_;  // see targets_for
    std::string refusal_;               // why no kernels run here; empty: they do
    mutable std::string text_;          // kernel_problem of the package, made when needed
    bool has_made_again_ = false;
    FoundKernels found_;
};

}  // namespace mdcg
