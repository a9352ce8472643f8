// What the CUDA driver says, as errors of the engine.
#pragma once

#include <string>

#include "core/cuda_driver.hpp"

namespace mdcg {

std::string device_name(int device);  // "cuda:0"

// Throws EngineError (ErrorKind::memory or device): one sentence with what to do.
[[noreturn]] void rethrow(const CudaError& error, int device);

template <typename Function>
auto guarded(int device, const Function& function) {
    try {
        return function();
    } catch (const CudaError& error) {
        rethrow(error, device);
    }
}

}  // namespace mdcg
