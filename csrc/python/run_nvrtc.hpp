// NVIDIA's run-time compiler, opened when it is needed; nothing of CUDA is linked.
#pragma once

#include <string>
#include <vector>

#include "core/shared_library.hpp"

namespace mdcg {

struct NvrtcResult {
    bool ok;
    std::string cubin;  // binary; empty unless ok
    std::string log;
};

class Nvrtc {
public:
    // Throws std::runtime_error if the library cannot be loaded or is not NVRTC.
    explicit Nvrtc(const std::string& path);

    int version_major() const { return major_; }
    int version_minor() const { return minor_; }

    // Compute capabilities it compiles for, as 10 * major + minor.
    const std::vector<int>& architectures() const { return architectures_; }

    // Compiles to machine code. Rejected source is a result, not an exception.
    NvrtcResult compile(const std::string& source, const std::string& name,
                        const std::vector<std::string>& options) const;

private:
    void check(int status, const char* what) const;

    SharedLibrary library_;
    int major_ = 0, minor_ = 0;
    std::vector<int> architectures_;
};

}  // namespace mdcg
