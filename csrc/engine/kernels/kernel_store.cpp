#include "engine/kernels/kernel_store.hpp"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/error.hpp"

namespace mdcg {

KernelStore::KernelStore(std::shared_ptr<const Package> package, KernelChoice choice,
                         const std::string& refusal)
    : source_(std::move(package), std::move(choice)) {
    if (!source_.choice().file.empty()) {
        find();  // a file that does not fit is refused at once
    } else if (!refusal.empty() && source_.choice().mode != KernelChoice::generic) {
        found_.why = refusal;
        looked_ = true;
    }
}

void KernelStore::find() {
    if (looked_) return;
    if (source_.choice().mode == KernelChoice::generic)
        found_.why = "kernels=generic was asked for";
    else
        found_ = source_.for_host();
    looked_ = true;
}

std::shared_ptr<SharedLibrary> KernelStore::read(int layer,
                                                 std::initializer_list<const char*> symbols) {
    if (found_.file == nullptr) throw std::runtime_error(found_.why);
    const Tensor* const code = found_.file->library(found_.target, layer);
    if (code == nullptr)
        throw std::runtime_error("layer " + std::to_string(layer) + " has no generated kernel");
    std::shared_ptr<SharedLibrary>& library = libraries_[code->data];
    if (library == nullptr)
        library = SharedLibrary::from_memory(
            code->data, static_cast<std::size_t>(code->count),
            "kernel " + std::to_string(layer) + " of " + found_.file->path());
    for (const char* symbol : symbols) library->symbol(symbol);
    return library;
}

const SharedLibrary* KernelStore::load(int layer, const std::string& name,
                                       std::initializer_list<const char*> symbols) {
    find();
    Kernel& kernel = kernels_[layer];
    kernel.name = name;
    if (kernel.library != nullptr) return kernel.library.get();
    for (;;) try {
            kernel.library = read(layer, symbols);
            return kernel.library.get();
        } catch (const std::runtime_error& error) {
            kernel.why = error.what();
            // the cache has a library that another compiler or another program left
            if (found_.origin != "cached" || made_again_) break;
            made_again_ = true;
            found_ = source_.again(found_, "");
        }
    if (source_.choice().mode == KernelChoice::generated)
        throw EngineError(ErrorKind::compiler, kernel.why);
    return nullptr;
}

nlohmann::json KernelStore::report() const {
    nlohmann::json out = nlohmann::json::array();
    double seconds = found_.seconds;
    for (const auto& [layer, kernel] : kernels_) {
        const bool loaded = kernel.library != nullptr;
        nlohmann::json entry = {{"name", kernel.name},
                                {"origin", loaded ? found_.origin : "generic"}};
        if (loaded) entry["target"] = found_.target;
        if (!loaded) entry["why"] = kernel.why;
        if (loaded && seconds > 0) entry["compile_seconds"] = seconds;
        seconds = 0;  // they count once
        out.push_back(std::move(entry));
    }
    return out;
}

std::string KernelStore::summary() const {
    std::size_t loaded = 0;
    for (const auto& [layer, kernel] : kernels_) loaded += kernel.library != nullptr;
    if (source_.choice().mode == KernelChoice::generic) return "kernels: generic";
    if (!looked_) return source_.outlook(0, "");
    return kernel_summary(found_, loaded, kernels_.size() - loaded);
}

}  // namespace mdcg
