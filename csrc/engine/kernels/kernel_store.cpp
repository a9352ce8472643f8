#include "engine/kernels/kernel_store.hpp"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/error.hpp"

namespace mdcg {

KernelStore::KernelStore(std::shared_ptr<const Package> package, KernelChoice choice,
                         const std::string& refusal)
    : finder_(std::move(package), std::move(choice)) {
    if (finder_.choice().mode == KernelChoice::generic)
        none_.why = "kernels=generic was asked for";
    else if (finder_.choice().file.empty())
        none_.why = refusal;
}

const FoundKernels& KernelStore::found() const {
    return none_.why.empty() ? finder_.found() : none_;
}

std::shared_ptr<SharedLibrary> KernelStore::read(int layer,
                                                 std::initializer_list<const char*> symbols) {
    if (none_.why.empty() && finder_.find().file == nullptr) none_ = finder_.found();
    if (!none_.why.empty()) throw std::runtime_error(none_.why);
    const KernelFile& file = *finder_.found().file;
    const Tensor* const code = file.library(finder_.found().target, layer);
    if (code == nullptr)
        throw std::runtime_error("layer " + std::to_string(layer) + " has no generated kernel");
    std::shared_ptr<SharedLibrary>& library = libraries_[code->data];
    if (library == nullptr)
        library =
            SharedLibrary::from_memory(code->data, static_cast<std::size_t>(code->count),
                                       "kernel " + std::to_string(layer) + " of " + file.path());
    for (const char* symbol : symbols) library->symbol(symbol);
    return library;
}

const SharedLibrary* KernelStore::load(int layer, const std::string& name,
                                       std::initializer_list<const char*> symbols) {
    Kernel& kernel = kernels_[layer];
    kernel.name = name;
    if (kernel.library != nullptr) return kernel.library.get();
    for (;;) try {
            kernel.library = read(layer, symbols);
            return kernel.library.get();
        } catch (const std::runtime_error& error) {
            kernel.why = error.what();
            // the cache has a library that another compiler or another program has left
            if (!finder_.make_again()) break;
            libraries_.clear();
            if (finder_.found().file == nullptr) none_ = finder_.found();
        }
    if (finder_.choice().mode == KernelChoice::generated)
        throw EngineError(ErrorKind::compiler, kernel.why);
    return nullptr;
}

nlohmann::json KernelStore::report() const {
    nlohmann::json out = nlohmann::json::array();
    double seconds = found().seconds;
    for (const auto& [layer, kernel] : kernels_) {
        const bool loaded = kernel.library != nullptr;
        nlohmann::json entry = {{"name", kernel.name},
                                {"origin", loaded ? found().origin : "generic"}};
        if (loaded) entry["target"] = found().target;
        if (!loaded) entry["why"] = kernel.why;
        if (loaded && seconds > 0) entry["compile_seconds"] = seconds;
        seconds = 0;  // reported once
        out.push_back(std::move(entry));
    }
    return out;
}

std::string KernelStore::summary() const {
    std::size_t loaded = 0;
    for (const auto& [layer, kernel] : kernels_) loaded += kernel.library != nullptr;
    if (finder_.choice().mode == KernelChoice::generic) return "kernels: generic";
    if (found().file == nullptr && found().why.empty()) return finder_.outlook();
    return kernel_summary(found(), loaded, kernels_.size() - loaded);
}

}  // namespace mdcg
