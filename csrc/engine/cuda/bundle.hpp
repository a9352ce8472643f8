// Machine code for devices in a package, so that it runs where no compiler is.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/package.hpp"

namespace mdcg {

// The manifest's "cuda_binaries": [{"target": "sm_90", "key", "tensor": of bytes, "sha256"}], where
// the key is that of the text the code was made from (cuda_kernel_key): what another version of the
// library would run is not found.
class CudaBundle {
public:
    // Throws EngineError where the manifest's entries make no sense.
    explicit CudaBundle(std::shared_ptr<const Package> package);

    // What a device can run of it, "sm_80" for one of 8.6: code serves devices of the same
    // generation that are not older. Empty: nothing.
    std::string target(int capability) const;
    // Machine code of a text for a device; empty: there is none. Throws EngineError where it is
    // damaged.
    std::string find(const std::string& key, int capability) const;
    // The version of the library that it was made for.
    const std::string& version() const { return version_; }

private:
    struct Binary {
        int capability;
        std::string key, sha256;
        const Tensor* tensor;
    };
    std::shared_ptr<const Package> package_;
    std::string version_;
    std::vector<Binary> binaries_;  // the newest first
};

// "sm_90" -> 90; 0: it is no such text.
int parse_cuda_target(const std::string& text);

}  // namespace mdcg
