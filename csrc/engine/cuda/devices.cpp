#include "engine/cuda/devices.hpp"

#include <stdexcept>
#include <string>

#include "engine/error.hpp"

namespace mdcg {

namespace {

// What to do where the driver has no device. That of AMD hides them from other users most often.
std::string action_without_devices(bool amd) {
    return amd ? "see whether rocminfo lists the card (as a user of the groups video and render), "
                 "or use device cpu"
               : "use device cpu";
}

}  // namespace

int parse_device(const std::string& text) {
    if (text == "cpu") return -1;
    const std::string kind = text.substr(0, text.find(':'));
    const std::string digits = text == kind ? "0" : text.substr(kind.size() + 1);
    const bool number = !digits.empty() && digits.size() < 4 &&
                        digits.find_first_not_of("0123456789") == std::string::npos;
    if ((kind != "cuda" && kind != "hip") || !number)
        throw EngineError(
            ErrorKind::unsupported,
            "device is '" + text + "', expected 'cpu', 'cuda', 'cuda:N', 'hip' or 'hip:N'");
    const bool amd = kind == "hip";
    const std::string driver = amd ? "HIP" : "CUDA", maker = amd ? "AMD's" : "NVIDIA's";
    const int device = std::stoi(digits);
    int count = 0;
    try {
        count = mdcg::device_count(amd ? Vendor::amd : Vendor::nvidia);
    } catch (const DeviceError& error) {
        if (error.kind() == DeviceError::forked)
            rethrow(error, amd ? FIRST_HIP_DEVICE + device : device);
        const std::string said = error.what();
        throw EngineError(ErrorKind::device,
                          "device is '" + text + "', and " +
                              (error.complete() ? said
                                                : "the " + driver + " driver finds none (" + said +
                                                      "): " + action_without_devices(amd)));
    } catch (const std::runtime_error& error) {
        throw EngineError(ErrorKind::device, "device is '" + text + "', and there is no " + driver +
                                                 " driver (" + error.what() + "): install " +
                                                 maker + ", or use device cpu");
    }
    const int first = amd ? FIRST_HIP_DEVICE : 0;
    if (device >= count)
        throw EngineError(ErrorKind::device,
                          "device is '" + text + "', and there " +
                              (count == 0   ? "are none"
                               : count == 1 ? "is one, " + device_label(first)
                                            : "are " + device_label(first) + " to " +
                                                  device_label(first + count - 1)) +
                              ": choose another one, or device cpu");
    return first + device;
}

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
    const bool amd = vendor_of(device) == Vendor::amd;
    std::string action = std::string("see whether ") + (amd ? "rocm-smi" : "nvidia-smi") +
                         " works, or use device cpu";
    if (error.kind() == DeviceError::no_device)
        action = action_without_devices(amd);
    else if (error.kind() == DeviceError::forked)
        action = "a process that was forked from one that used it needs the start method 'spawn'";
    else if (error.kind() == DeviceError::too_many_resources)
        action = "report it with the name of the device, or use device cpu";
    throw EngineError(
        kind, "device " + device_label(device) + " cannot be used (" + said + "): " + action);
}

}  // namespace mdcg
