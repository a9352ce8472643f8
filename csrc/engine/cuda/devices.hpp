// Devices by their names, and what the CUDA driver says as errors of the engine.
#pragma once

#include <string>

#include "core/device.hpp"

namespace mdcg {

std::string device_label(int device);  // "cuda:0"

// "cuda" (the first) and "cuda:N" are numbers of devices, "cpu" is -1; throws EngineError where it
// is nothing of that, or where there is no such device.
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
