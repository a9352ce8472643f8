#include "engine/cuda/device_errors.hpp"

#include "engine/error.hpp"

namespace mdcg {

std::string device_label(int device) { return "cuda:" + std::to_string(device); }

void rethrow(const DeviceError& error, int device) {
    const bool memory = error.kind() == DeviceError::out_of_memory;
    const ErrorKind kind = memory ? ErrorKind::memory : ErrorKind::device;
    const std::string said = error.what();
    if (error.complete()) throw EngineError(kind, said);
    if (memory)
        throw EngineError(kind, "out of memory on device " + device_label(device) + " (" + said +
                                    "): evaluate a smaller system, or use more devices");
    if (error.kind() == DeviceError::lost)
        throw EngineError(kind, "device " + device_label(device) + " was lost (" + said +
                                    "): start the process again to use it, models on the cpu and "
                                    "on other devices go on");
    std::string action = "see whether nvidia-smi works, or use device cpu";
    if (error.kind() == DeviceError::no_device)
        action = "use device cpu";
    else if (error.kind() == DeviceError::forked)
        action = "a process that was forked from one that used it needs the start method 'spawn'";
    else if (error.kind() == DeviceError::too_many_resources)
        action = "report it with the name of the device, or use device cpu";
    throw EngineError(
        kind, "device " + device_label(device) + " cannot be used (" + said + "): " + action);
}

}  // namespace mdcg
