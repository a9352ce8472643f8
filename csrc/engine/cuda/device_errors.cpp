#include "engine/cuda/device_errors.hpp"

#include "engine/error.hpp"

namespace mdcg {

namespace {

// After these every call of the context fails: memory that does not answer or is not there, kernels
// that were stopped.
bool is_lost(int code) {
    constexpr int UNCORRECTABLE = 214, NVLINK = 220, DESTROYED = 709, ASSERTED = 710;
    return code == UNCORRECTABLE || code == NVLINK || code == 700 || code == 702 ||
           code == DESTROYED || code == ASSERTED || (code >= 714 && code <= 719);
}

}  // namespace

std::string device_name(int device) { return "cuda:" + std::to_string(device); }

void rethrow(const CudaError& error, int device) {
    constexpr int NONE = 100, FORKED = 3, TOO_MUCH = 701;
    const bool memory = error.code() == CUDA_OUT_OF_MEMORY;
    const ErrorKind kind = memory ? ErrorKind::memory : ErrorKind::device;
    const std::string said = error.what();
    if (error.complete()) throw EngineError(kind, said);
    if (memory)
        throw EngineError(kind, "out of memory on device " + device_name(device) + " (" + said +
                                    "): evaluate a smaller system, or use more devices");
    if (is_lost(error.code()))
        throw EngineError(kind, "device " + device_name(device) + " was lost (" + said +
                                    "): start the process again to use it, models on the cpu and "
                                    "on other devices go on");
    std::string action = "see whether nvidia-smi works, or use device cpu";
    if (error.code() == NONE)
        action = "use device cpu";
    else if (error.code() == FORKED)
        action = "a process that was forked from one that used it needs the start method 'spawn'";
    else if (error.code() == TOO_MUCH)
        action = "report it with the name of the device, or use device cpu";
    throw EngineError(
        kind, "device " + device_name(device) + " cannot be used (" + said + "): " + action);
}

}  // namespace mdcg
