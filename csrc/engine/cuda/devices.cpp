#include "engine/cuda/devices.hpp"

#include <cctype>
#include <stdexcept>

#include "engine/error.hpp"

namespace mdcg {

std::string device_label(int device) { return "cuda:" + std::to_string(device); }

int parse_device(const std::string& text) {
    if (text == "cpu") return -1;
    bool number = text.compare(0, 5, "cuda:") == 0 && text.size() > 5 && text.size() < 9;
    for (std::size_t i = 5; number && i < text.size(); ++i)
        number = std::isdigit(static_cast<unsigned char>(text[i])) != 0;
    if (text != "cuda" && !number)
        throw EngineError(ErrorKind::unsupported,
                          "device is '" + text + "', expected 'cpu', 'cuda' or 'cuda:N'");
    const int device = number ? std::stoi(text.substr(5)) : 0;
    int count = 0;
    try {
        count = mdcg::device_count();
    } catch (const DeviceError& error) {
        const std::string said = error.what();
        throw EngineError(
            ErrorKind::device,
            "device is '" + text + "', and " +
                (error.complete() ? said
                                  : "the CUDA driver finds none (" + said + "): use device cpu"));
    } catch (const std::runtime_error& error) {
        throw EngineError(ErrorKind::device, "device is '" + text +
                                                 "', and there is no CUDA driver (" + error.what() +
                                                 "): install NVIDIA's, or use device cpu");
    }
    if (device >= count)
        throw EngineError(ErrorKind::device,
                          "device is '" + text + "', and there " +
                              (count == 0   ? "are none"
                               : count == 1 ? "is one, cuda:0"
                                            : "are cuda:0 to " + device_label(count - 1)) +
                              ": choose another one, or device cpu");
    return device;
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
