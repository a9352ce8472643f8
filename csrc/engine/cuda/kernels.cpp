#include "engine/cuda/kernels.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "engine/error.hpp"

namespace mdcg {

namespace {

Vendor vendor_of(const FoundKernels& found) {
    return is_gfx(parse_device_target(found.target)) ? Vendor::amd : Vendor::nvidia;
}

// Whether machine code was made by a compiler of a later CUDA than the driver.
bool is_newer_than_driver(const FoundKernels& found) {
    return vendor_of(found) == Vendor::nvidia &&
           found.file->compiler_major(found.target) > driver_version(Vendor::nvidia) / 1000;
}

// The error if the driver refuses machine code that was made correctly.
std::string not_loaded(const FoundKernels& found, const std::string& reason) {
    const Vendor vendor = vendor_of(found);
    const int version = driver_version(vendor), major = version / 1000;
    const std::string compiler = found.file->compiler(found.target);
    const std::string what = std::string(vendor == Vendor::amd ? "AMD" : "NVIDIA") +
                             "'s driver, for " + driver_version_text(vendor) +
                             ", cannot load machine code for " + found.target + " that " +
                             compiler + " made (" + reason + "): ";
    if (!is_newer_than_driver(found))
        return what + "report it with the name of the device, or use device cpu";
    const std::string package =
        "nvidia-cuda-nvrtc" + (major < 13 ? "-cu" + std::to_string(major) : "");
    return what + "update the driver, or install an NVRTC of its version with 'pip install " +
           package + "==" + std::to_string(major) + "." + std::to_string(version % 1000 / 10) +
           ".*', set MDCG_NVRTC_LIB to its file and run 'python -m mdcg cache clear'";
}

// Machine code from a kernel file that is named, or from the cache.
class PackageCode : public CudaCode {
public:
    PackageCode(std::shared_ptr<const Package> package, KernelChoice choice, int capability)
        : finder_(std::move(package), std::move(choice), capability) {}

    const KernelFile& file() override {
        finder_.find();
        return checked();
    }
    std::vector<std::string> find(const std::vector<CudaKernelSource>& texts, int) override {
        const KernelFile& from = file();
        std::vector<std::string> codes;
        for (const CudaKernelSource& text : texts) {
            const Tensor* const code = from.code(found().target, text.key);
            if (code == nullptr)
                throw EngineError(ErrorKind::compiler,
                                  from.path() + " has no machine code of " + text.name + " for " +
                                      found().target + ": make it with '" +
                                      finder_.command(found().target) + " --again'");
            codes.emplace_back(static_cast<const char*>(code->data),
                               static_cast<std::size_t>(code->count));
        }
        return codes;
    }
    bool make_again() override {
        if (!finder_.make_again()) return false;
        checked();
        return true;
    }
    const FoundKernels& found() const override { return finder_.found(); }
    std::string outlook() const override { return finder_.outlook(); }

private:
    const KernelFile& checked() const {
        if (found().file == nullptr) throw EngineError(ErrorKind::compiler, found().why);
        return *found().file;
    }

    KernelFinder finder_;
};

// No machine code: texts are only listed.
class ListedCode : public CudaCode {
public:
    explicit ListedCode(KernelFile file) : file_(std::move(file)) {}
    const KernelFile& file() override { return file_; }
    std::vector<std::string> find(const std::vector<CudaKernelSource>&, int) override { return {}; }
    const FoundKernels& found() const override { return found_; }

private:
    KernelFile file_;
    FoundKernels found_;
};

}  // namespace

CudaCodePtr code_of(std::shared_ptr<const Package> package, KernelChoice choice, int capability) {
    return std::make_shared<PackageCode>(std::move(package), std::move(choice), capability);
}

CudaCodePtr code_of(KernelFile file) { return std::make_shared<ListedCode>(std::move(file)); }

// A text, and its module once it is loaded.
class CudaProgram {
public:
    explicit CudaProgram(CudaKernelSource text) : text_(std::move(text)) {}

    const CudaKernelSource& text() const { return text_; }
    bool loaded() const { return module_ != nullptr; }
    void ask_for(const std::string& kernel, int shared_bytes) {
        kernels_.emplace(kernel, shared_bytes);
    }

    // Throws DeviceError where the device refuses the code, or it lacks a kernel.
    void load(int device, const std::string& code) {
        auto module = std::make_unique<DeviceModule>(device, code);
        for (const auto& [kernel, shared_bytes] : kernels_)
            (void)module->function(kernel, shared_bytes);
        module_ = std::move(module);
    }
    std::uintptr_t function(const std::string& kernel, int shared_bytes) const {
        if (!loaded()) throw std::logic_error(kernel + " is launched before it was loaded");
        return module_->function(kernel, shared_bytes);
    }

private:
    CudaKernelSource text_;
    std::set<std::pair<std::string, int>> kernels_;
    std::unique_ptr<const DeviceModule> module_;
};

CudaFunction::CudaFunction(std::shared_ptr<CudaProgram> program, const std::string& kernel,
                           int shared_bytes)
    : entry_(std::make_shared<Entry>(Entry{std::move(program), kernel, shared_bytes, 0})) {}

void CudaFunction::launch_bytes(const DeviceStream& stream, std::int64_t blocks, int threads,
                                int shared_bytes, const void* arguments) const {
    if (blocks <= 0) return;
    Entry& entry = *entry_;
    if (entry.function == 0)
        entry.function = entry.program->function(entry.kernel, entry.shared_bytes);
    launch_kernel(stream.device(), entry.function, blocks, threads, shared_bytes, stream.handle(),
                  arguments, false, ("the launch of " + entry.kernel).c_str());
}

CudaKernels::CudaKernels(const CudaTarget& place, int item_bytes)
    : place_(place), item_bytes_(item_bytes) {
    if (place_.capability == 0) place_.capability = mdcg::compute_capability(place_.device);
}

CudaFunction CudaKernels::function(CudaKernelSource text, int shared_bytes) {
    const std::string kernel = text.name;
    std::shared_ptr<CudaProgram>& found = programs_[text.key];
    if (found == nullptr) found = std::make_shared<CudaProgram>(std::move(text));
    found->ask_for(kernel, shared_bytes);
    return CudaFunction(found, kernel, shared_bytes);
}

int CudaKernels::multiprocessors() const {
    return place_.device == NO_DEVICE ? 1 : std::max(device_multiprocessors(place_.device), 1);
}

CudaFunction CudaKernels::fixed(const std::string& file, const std::string& kernel,
                                const std::string& defines, int shared_bytes) {
    const std::string item = item_bytes_ == 4 ? "float" : "double";
    std::string text = "// mdcg " MDCG_VERSION "\n" + defines + (defines.empty() ? "" : "\n") +
                       "typedef " + item + " T;\n" + kernel_source(file);
    std::string key = text_key(text);
    return function({std::move(key), kernel, std::move(text)}, shared_bytes);
}

CudaFunction CudaKernels::program(const std::string& key, const std::string& kernel,
                                  int shared_bytes) {
    return function({key, kernel, ""}, shared_bytes);
}

void CudaKernels::load() {
    for (;;) {
        std::vector<CudaKernelSource> texts;
        std::vector<CudaProgram*> missing;
        for (const auto& [key, program] : programs_) {
            if (program->loaded()) continue;
            texts.push_back(program->text());
            missing.push_back(program.get());
        }
        if (missing.empty()) return;
        const std::vector<std::string> codes = place_.code->find(texts, place_.capability);
        try {
            for (std::size_t i = 0; i < codes.size(); ++i)
                missing[i]->load(place_.device, codes[i]);
            return;
        } catch (const DeviceError& error) {
            if (error.kind() != DeviceError::unusable_code) throw;
            const bool old_driver = is_newer_than_driver(place_.code->found());
            if (!old_driver && place_.code->make_again()) continue;
            throw EngineError(ErrorKind::device, not_loaded(place_.code->found(), error.what()));
        }
    }
}

std::vector<CudaKernelSource> CudaKernels::texts() const {
    std::vector<CudaKernelSource> found;
    for (const auto& [key, program] : programs_)
        if (!program->text().text.empty()) found.push_back(program->text());
    return found;
}

nlohmann::json CudaKernels::report() const {
    nlohmann::json out = nlohmann::json::array();
    const FoundKernels& found = place_.code->found();
    double seconds = found.seconds;
    for (const auto& [key, program] : programs_) {
        nlohmann::json entry = {
            {"name", program->text().name},
            {"origin", program->loaded() ? found.origin : "not loaded"},
            {"target", found.target.empty() ? target_name(place_.capability) : found.target}};
        if (seconds > 0) entry["compile_seconds"] = seconds;
        seconds = 0;  // reported once
        out.push_back(std::move(entry));
    }
    return out;
}

std::string CudaKernels::summary() const {
    std::size_t loaded = 0;
    for (const auto& [key, program] : programs_) loaded += program->loaded();
    return kernel_summary(place_.code->found(), loaded, 0);
}

}  // namespace mdcg
