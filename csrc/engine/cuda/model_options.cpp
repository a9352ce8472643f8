// Devices and precisions by their names.
#include <cctype>
#include <stdexcept>
#include <string>

#include "engine/cuda/device_errors.hpp"
#include "engine/cuda/model.hpp"
#include "engine/error.hpp"
#include "engine/program.hpp"

namespace mdcg {

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

void check_precision(const std::string& text, const Package& package) {
    if (text == "tf32" || text == "bf16")
        bad_argument("precision is '" + text +
                     "', a mode that was removed: leave it out, and float32 packages multiply in "
                     "float32");
    const bool single = text == "fp32" || text == "float32";
    if (!text.empty() && !single && text != "fp64" && text != "float64")
        bad_argument("precision is '" + text +
                     "', expected fp32 (or float32) or fp64 (or float64), or nothing for that of "
                     "the package");
    const bool wide = read_model_info(package).double_precision;
    if (text.empty() || single != wide) return;
    throw EngineError(ErrorKind::unsupported,
                      "precision is '" + text + "', and " + package.path() + " was converted to " +
                          (wide ? "float64" : "float32") +
                          ", which is fixed: leave it out, or convert the checkpoint again "
                          "(mdcg-patch --precision " +
                          (single ? "fp32)" : "fp64)"));
}

}  // namespace mdcg
