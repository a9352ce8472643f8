#include "engine/cuda/kernels.hpp"

#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/cuda/bundle.hpp"
#include "engine/error.hpp"

namespace mdcg {

namespace {

const char* const COMMON =
#include "engine/cuda/text/common.cuh"
    ;

// Of the driver: machine code that it cannot take.
constexpr int INVALID_IMAGE = 200, NO_BINARY_FOR_DEVICE = 209, UNSUPPORTED_PTX = 222;

bool refused(const CudaError& error) {
    return error.code() == INVALID_IMAGE || error.code() == NO_BINARY_FOR_DEVICE ||
           error.code() == UNSUPPORTED_PTX;
}

// What the driver refuses, though NVRTC has just made it: one of the two is of another time.
std::string not_loaded(const std::string& target, const std::string& reason) {
    const CudaDriver& driver = CudaDriver::get();
    const int version = driver.version(), major = version / 1000;
    const std::string what = nvrtc_text() + " made machine code for " + target +
                             " that NVIDIA's driver, for " + driver.version_text() +
                             ", cannot load (" + reason + "): ";
    if (nvrtc_version() <= version)
        return what + "report it with the name of the device, or use device cpu";
    const std::string package =
        "nvidia-cuda-nvrtc" + (major < 13 ? "-cu" + std::to_string(major) : "");
    return what + "update the driver, or install an NVRTC of its version with 'pip install " +
           package + "==" + std::to_string(major) + "." + std::to_string(version % 1000 / 10) +
           ".*' and set MDCG_NVRTC_LIB to its file";
}

}  // namespace

// A text, and its module once it was loaded.
class CudaProgram {
public:
    CudaProgram(const CudaPlace& place, CudaSource source, std::string name)
        : place_(place), name_(std::move(name)), source_(std::move(source)) {}

    bool loaded() const { return module_ != nullptr; }
    const CudaSource& source() const { return source_; }
    const std::string& name() const { return name_; }
    std::string target() const {
        return origin_ == BUNDLED ? place_.bundle->target(place_.capability) : own_target();
    }
    const char* origin() const { return origin_; }
    const std::string& why() const { return why_; }
    double seconds() const { return seconds_; }

    // Whether the package has its machine code, and the device takes it.
    bool take_bundled() {
        if (place_.bundle == nullptr) return false;
        const std::string target = place_.bundle->target(place_.capability);
        if (target.empty()) return false;
        const std::string code = place_.bundle->find(cuda_kernel_key(source_), place_.capability);
        if (code.empty()) {
            why_ = "the package's machine code for " + target;
            why_ += place_.precision != CudaPrecision::strict
                        ? " is of precision fp32 alone"
                        : " is not what this version of mdcg (" MDCG_VERSION
                          ") runs: it was made by " +
                              place_.bundle->version();
            return false;
        }
        const std::string reason = load(code);
        if (!reason.empty()) {
            why_ =
                "the device refuses the package's machine code for " + target + " (" + reason + ")";
            return false;
        }
        origin_ = BUNDLED;
        return true;
    }

    void take(CudaBinary binary) {
        if (!binary.error.empty()) fail(binary.error);
        std::string reason = load(binary.cubin);
        if (!reason.empty() && !binary.compiled) {
            // cached by another version of the compiler, or cut short: once more
            discard_cuda_kernel(source_, own_target());
            binary = load_cuda_kernels({source_}, own_target())[0];
            if (!binary.error.empty()) fail(binary.error);
            reason = load(binary.cubin);
        }
        if (!reason.empty()) throw EngineError(ErrorKind::device, not_loaded(own_target(), reason));
        origin_ = binary.compiled ? "compiled" : "cached";
        seconds_ = binary.seconds;
    }

    const CudaModule& module() {
        if (!loaded() && !take_bundled()) take(load_cuda_kernels({source_}, own_target())[0]);
        return *module_;
    }

private:
    static constexpr const char* BUNDLED = "bundled";

    // Loads machine code, or says why the device refuses it.
    std::string load(const std::string& code) {
        try {
            module_ = std::make_unique<CudaModule>(place_.device, code);
        } catch (const CudaError& error) {
            if (!refused(error)) throw;
            return error.what();
        }
        return "";
    }
    std::string own_target() const { return "sm_" + std::to_string(place_.capability); }
    [[noreturn]] void fail(const std::string& error) const {
        if (why_.empty()) throw EngineError(ErrorKind::compiler, error);
        const std::string instead =
            place_.precision != CudaPrecision::strict
                ? "; or leave the precision out"
                : "; or bundle it again with this version (mdcg-patch --bundle " + own_target() +
                      ")";
        throw EngineError(ErrorKind::compiler, why_ + ", and " + error + instead);
    }

    CudaPlace place_;
    std::string name_, why_;  // why it is not bundled, though the package has machine code
    CudaSource source_;
    const char* origin_ = "not loaded";
    double seconds_ = 0;
    std::unique_ptr<const CudaModule> module_;
};

const char* name_of(CudaPrecision precision) {
    switch (precision) {
        case CudaPrecision::tf32:
            return "tf32";
        case CudaPrecision::bf16:
            return "bf16";
        default:
            return "";
    }
}

CudaFunction::CudaFunction(std::shared_ptr<CudaProgram> program, const std::string& kernel,
                           int shared_bytes)
    : entry_(std::make_shared<Entry>(Entry{std::move(program), kernel, shared_bytes, 0})) {}

void CudaFunction::launch_bytes(const CudaStream& stream, std::int64_t blocks, int threads,
                                int shared_bytes, const void* arguments) const {
    if (blocks <= 0) return;
    Entry& entry = *entry_;
    if (entry.function == 0)
        entry.function = entry.program->module().function(entry.kernel, entry.shared_bytes);
    const CudaScope scope(stream.device());
    launch_kernel(entry.function, blocks, threads, shared_bytes,
                  reinterpret_cast<std::uintptr_t>(stream.handle()), arguments, false,
                  ("the launch of " + entry.kernel).c_str());
}

CudaKernels::CudaKernels(const CudaPlace& place, int item_bytes)
    : place_(place), item_bytes_(item_bytes) {
    if (place_.capability == 0)
        place_.capability = CudaDriver::get().compute_capability(place_.device);
}

std::shared_ptr<CudaProgram> CudaKernels::find(CudaSource source, const std::string& kernel) {
    std::string key = source.text;
    for (const std::string& option : source.options) key.append(1, '\0').append(option);
    std::shared_ptr<CudaProgram>& found = programs_[key];
    if (found == nullptr) found = std::make_shared<CudaProgram>(place_, std::move(source), kernel);
    return found;
}

CudaFunction CudaKernels::fixed(const char* text, const std::string& kernel,
                                const std::string& defines, int shared_bytes) {
    const std::string item = item_bytes_ == 4 ? "float" : "double";
    CudaSource source;
    source.text = "// mdcg " MDCG_VERSION "\n" + defines + (defines.empty() ? "" : "\n") +
                  "typedef " + item + " T;\ntypedef long long Long;\n" + COMMON + text;
    return CudaFunction(find(std::move(source), kernel), kernel, shared_bytes);
}

CudaFunction CudaKernels::program(const std::string& text, const std::string& kernel,
                                  int shared_bytes, const std::vector<std::string>& options) {
    return CudaFunction(find({text, options}, kernel), kernel, shared_bytes);
}

void CudaKernels::load() {
    std::vector<CudaSource> sources;
    std::vector<CudaProgram*> missing;
    for (const auto& [key, program] : programs_) {
        if (program->loaded() || program->take_bundled()) continue;
        sources.push_back(program->source());
        missing.push_back(program.get());
    }
    if (sources.empty()) return;
    const std::vector<CudaBinary> binaries =
        load_cuda_kernels(sources, "sm_" + std::to_string(place_.capability));
    for (std::size_t i = 0; i < missing.size(); ++i) missing[i]->take(binaries[i]);
}

std::vector<CudaText> CudaKernels::texts() const {
    std::vector<CudaText> found;
    for (const auto& [key, program] : programs_)
        found.push_back({cuda_kernel_key(program->source()), program->name(), program->source()});
    return found;
}

std::string CudaKernels::report() const {
    nlohmann::json out = nlohmann::json::array();
    for (const auto& [key, program] : programs_) {
        nlohmann::json entry = {{"name", program->name()},
                                {"origin", program->origin()},
                                {"target", program->target()}};
        if (program->seconds() > 0) entry["compile_seconds"] = program->seconds();
        if (!program->why().empty()) entry["why"] = program->why();
        out.push_back(std::move(entry));
    }
    return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string CudaKernels::summary() const {
    std::map<std::string, int> counts;
    for (const auto& [key, program] : programs_) ++counts[program->origin()];
    std::string text;
    for (const auto& [origin, count] : counts)
        text += (text.empty() ? "kernels: " : ", ") + std::to_string(count) + " " + origin;
    return text;
}

}  // namespace mdcg
