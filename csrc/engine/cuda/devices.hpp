// Names of devices, and errors of drivers as errors of the engine.
#pragma once

#include <string>

#include "core/device.hpp"

namespace mdcg {

// Returns the number of device "cuda" (the first), "cuda:N", "hip" or "hip:N", and -1 for "cpu".
// Throws EngineError for other texts, and if there is no such device.
int parse_device(const std::string& text);

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
