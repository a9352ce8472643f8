#include "engine/kernel_store.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "core/cpu.hpp"
#include "core/host_compiler.hpp"
#include "core/sha256.hpp"
#include "engine/error.hpp"

namespace mdcg {

namespace {

const char* const NATIVE = "native-";

// How well code of a target suits this processor; 0: it does not run.
int suitability(const std::string& target) {
    if (target.compare(0, 7, NATIVE) == 0) return target == HostTarget::of("native").name ? 100 : 0;
    for (int level = 2; level <= 4; ++level)
        if (target == "x86-64-v" + std::to_string(level))
            return has_instruction_set(target) ? level : 0;
    return target == instruction_set_level() ? 1 : 0;
}

std::shared_ptr<SharedLibrary> load_file(const std::string& path) {
    try {
        return std::make_shared<SharedLibrary>(path);
    } catch (const std::runtime_error&) {
        // folders that forbid execution; the digest has been checked
        const std::string binary = read_file(path);
        return SharedLibrary::from_memory(binary.data(), binary.size(), path);
    }
}

const Tensor* bytes_of(const Package& package, const nlohmann::json& entry, const char* key,
                       const std::string& name) {
    const auto found = entry.find(key);
    if (found == entry.end() || !found->is_string())
        package.fail("kernel '" + name + "' has no `" + key + "`, expected the name of a tensor");
    const Tensor* tensor = package.find(found->get<std::string>());
    if (tensor == nullptr || tensor->dtype != Dtype::u8)
        package.fail("`" + std::string(key) + "` of kernel '" + name + "' is '" +
                     found->get<std::string>() + "', which is no tensor of bytes");
    return tensor;
}

std::string text_field(const Package& package, const nlohmann::json& entry, const char* key,
                       const std::string& where) {
    const auto found = entry.is_object() ? entry.find(key) : entry.end();
    if (found == entry.end() || !found->is_string())
        package.fail(where + " has no `" + key + "`, expected a text");
    return found->get<std::string>();
}

}  // namespace

KernelMode parse_kernel_mode(const std::string& text) {
    if (text.empty() || text == "auto") return KernelMode::automatic;
    if (text == "generic") return KernelMode::generic;
    if (text == "generated") return KernelMode::generated;
    throw EngineError(ErrorKind::argument,
                      "kernels is '" + text + "', expected auto, generic or generated");
}

KernelStore::KernelStore(std::shared_ptr<const Package> package, KernelMode mode)
    : package_(std::move(package)), mode_(mode) {
    const nlohmann::json& manifest = package_->manifest();
    const auto entries = manifest.find("kernels");
    if (entries == manifest.end() || entries->is_null()) return;
    if (!entries->is_array()) package_->fail("`kernels` is no list");
    for (const nlohmann::json& entry : *entries) {
        const std::string name = text_field(*package_, entry, "name", "a kernel");
        Kernel kernel;
        kernel.source = bytes_of(*package_, entry, "source", name);
        const auto binaries = entry.find("binaries");
        if (binaries != entry.end() && !binaries->is_array())
            package_->fail("`binaries` of kernel '" + name + "' is no list");
        if (binaries != entry.end())
            for (const nlohmann::json& each : *binaries) {
                const std::string where = "a binary of kernel '" + name + "'";
                Binary binary{text_field(*package_, each, "target", where),
                              text_field(*package_, each, "sha256", where),
                              bytes_of(*package_, each, "tensor", name)};
                if (suitability(binary.target) > 0) kernel.binaries.push_back(binary);
            }
        std::stable_sort(kernel.binaries.begin(), kernel.binaries.end(),
                         [](const Binary& a, const Binary& b) {
                             return suitability(a.target) > suitability(b.target);
                         });
        if (!kernels_.emplace(name, std::move(kernel)).second)
            package_->fail("two kernels have the name '" + name + "'");
    }
}

const SharedLibrary* KernelStore::load(const std::string& name) {
    const auto found = kernels_.find(name);
    if (found == kernels_.end())
        package_->fail("a layer names the kernel '" + name + "', which the package does not have");
    if (!loaded_) load_all();
    return found->second.library.get();
}

void KernelStore::refuse(const std::string& name, const std::string& why) {
    if (mode_ == KernelMode::generated) throw EngineError(ErrorKind::compiler, why);
    Kernel& kernel = kernels_.at(name);  // whose library stays: other layers may run it
    kernel.origin = "generic";
    kernel.target = "";
    kernel.why = why;
}

void KernelStore::load_all() {
    std::vector<std::pair<std::string, Kernel*>> missing;
    for (auto& [name, kernel] : kernels_) {
        if (mode_ == KernelMode::generic) {
            kernel.origin = "generic";
            kernel.why = "kernels=generic was asked for";
        } else if (kernel.library == nullptr && !load_bundled(name, kernel)) {
            missing.emplace_back(name, &kernel);
        }
    }
    load_built(missing);
    for (const auto& [name, kernel] : missing)
        if (kernel->library == nullptr && mode_ == KernelMode::generated)
            throw EngineError(ErrorKind::compiler, kernel->why);
    loaded_ = true;
}

bool KernelStore::load_bundled(const std::string& name, Kernel& kernel) {
    for (const Binary& binary : kernel.binaries) {
        const auto size = static_cast<std::size_t>(binary.tensor->count);
        if (sha256_hex(binary.tensor->data, size) != binary.sha256)
            package_->fail("the compiled kernel '" + name + "' for " + binary.target +
                           " is damaged (its SHA-256 differs): copy the file again");
        try {
            kernel.library = SharedLibrary::from_memory(binary.tensor->data, size,
                                                        "kernel " + name + " for " + binary.target);
            kernel.origin = "bundled";
            kernel.target = binary.target;
            return true;
        } catch (const std::runtime_error& error) {
            kernel.why = error.what();
        }
    }
    return false;
}

void KernelStore::load_built(std::vector<std::pair<std::string, Kernel*>>& missing) {
    if (missing.empty()) return;
    const HostTarget target = HostTarget::of("native");
    for (const bool again : {false, true}) {
        std::vector<std::string> sources;  // layers of equal shape share one
        std::map<std::string, std::size_t> place;
        for (const auto& [name, kernel] : missing) {
            std::string source(static_cast<const char*>(kernel->source->data),
                               static_cast<std::size_t>(kernel->source->count));
            // compilers that refused say nothing else the second time
            const bool wanted = kernel->library == nullptr && (!again || kernel->unloaded);
            if (wanted && place.emplace(source, sources.size()).second)
                sources.push_back(std::move(source));
        }
        if (sources.empty()) return;
        std::vector<BuiltKernel> built = build_kernels(sources, target);
        for (auto& [name, kernel] : missing) {
            if (kernel->library != nullptr || (again && !kernel->unloaded)) continue;
            BuiltKernel& mine =
                built[place.at(std::string(static_cast<const char*>(kernel->source->data),
                                           static_cast<std::size_t>(kernel->source->count)))];
            kernel->origin = "generic";
            kernel->target = "";
            kernel->why = mine.error;
            kernel->unloaded = false;
            if (!mine.error.empty()) continue;
            try {
                kernel->library = load_file(mine.path);
                kernel->origin = mine.compiled ? "compiled" : "cached";
                kernel->target = target.name;
                kernel->seconds = mine.seconds;
                mine.compiled = false;  // its time counts once
                mine.seconds = 0;
            } catch (const std::runtime_error& error) {
                kernel->why = std::string("a compiled kernel cannot be loaded (") + error.what() +
                              "): set MDCG_CACHE_DIR to a folder that allows execution";
                kernel->unloaded = true;
                const std::string folder = mine.path.substr(0, mine.path.rfind('/'));
                if (!again) KernelCache(target.name).discard(folder.substr(folder.rfind('/') + 1));
            }
        }
    }
}

std::string KernelStore::report() const {
    nlohmann::json out = nlohmann::json::array();
    for (const auto& [name, kernel] : kernels_) {
        nlohmann::json entry = {{"name", name}, {"origin", kernel.origin}};
        if (!kernel.target.empty()) entry["target"] = kernel.target;
        if (!kernel.why.empty()) entry["why"] = kernel.why;
        if (kernel.seconds > 0) entry["compile_seconds"] = kernel.seconds;
        out.push_back(std::move(entry));
    }
    return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string KernelStore::summary() const {
    if (kernels_.empty()) return "generic kernels: the package has no others";
    std::map<std::string, int> counts;
    for (const auto& [name, kernel] : kernels_) ++counts[kernel.origin];
    std::string text;
    for (const auto& [origin, count] : counts)
        text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + origin;
    return "kernels: " + text;
}

}  // namespace mdcg
