// What the CUDA driver says, as errors of the engine.
#pragma once

#include <string>

#include "core/device.hpp"

namespace mdcg {

std::string device_label(int device);  // "cuda:0"

// Throws EngineError (ErrorKind::memory or device): one sentence with what to do.
[[noreturn]] void rethrow(const DeviceError& error, int device);

template <typename Function>
auto guarded(int device, const Function& function) {
    try {
        return function();
    } catch (const DeviceError& error) {
        rethrow(error, device);
    }
}

}  // namespace mdcg
