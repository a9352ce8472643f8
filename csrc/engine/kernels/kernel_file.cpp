#include "engine/kernels/kernel_file.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/device.hpp"
#include "core/kernel_cache.hpp"
#include "core/sha256.hpp"
#include "engine/error.hpp"

namespace mdcg {

namespace {

using nlohmann::json;

// Fields of a manifest that do not change what is computed.
constexpr const char* NOT_KERNELS[] = {
    "format", "mdcg_version", "architecture", "model_class",    "source", "verification", "options",
    "head",   "heads",        "type_names",   "atomic_numbers", "inputs", "input_network"};

// A member that is an object; an empty object if it is absent.
const json& member(const json& object, const std::string& key) {
    static const json nothing = json::object();
    const auto found = object.find(key);
    return found != object.end() && found->is_object() ? *found : nothing;
}

// Removes fields that are null: the engine treats them as absent, so the generator must do the
// same.
void drop_nulls(json& value) {
    if (!value.is_structured()) return;
    for (auto each = value.begin(); each != value.end();) {
        drop_nulls(*each);
        each = value.is_object() && each->is_null() ? value.erase(each) : std::next(each);
    }
}

}  // namespace

std::string kernel_problem(const Package& package) {
    json problem = package.manifest();
    problem["types"] = problem.at("type_names").size();
    for (const char* key : NOT_KERNELS) problem.erase(key);
    drop_nulls(problem);
    json& tensors = problem["tensors"] = json::object();
    for (const auto& [name, tensor] : package.tensors())
        tensors[name] = json::array({about(tensor.dtype).file_name, tensor.shape});
    return problem.dump();
}

std::string kernel_key(const std::string& problem) {
    return KernelCache::key({problem, kernel_generator()});
}

const char* kernel_generator() { return MDCG_GENERATOR; }

std::string text_key(const std::string& text) {
    return sha256_hex(text.data(), text.size()).substr(0, 32);
}

int parse_device_target(const std::string& text) {
    if (text.size() >= 6 && text.size() <= 7 && text.compare(0, 3, "gfx") == 0) {
        const bool hexadecimal = std::all_of(text.begin() + 3, text.end(), [](char c) {
            return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
        });
        const int number = hexadecimal ? std::stoi(text.substr(3), nullptr, 16) : 0;
        return is_gfx(number) ? number : 0;
    }
    const bool good =
        text.size() >= 5 && text.size() <= 6 && text.compare(0, 3, "sm_") == 0 &&
        std::all_of(text.begin() + 3, text.end(), [](char c) { return c >= '0' && c <= '9'; });
    return good ? std::stoi(text.substr(3)) : 0;
}

KernelFile::KernelFile(std::shared_ptr<const Package> file) : file_(std::move(file)) {}

KernelFile::KernelFile(std::shared_ptr<const Package> package, const std::string& passes)
    : file_(std::move(package)), given_(std::make_shared<json>(json::parse(passes))) {}

KernelFile::~KernelFile() = default;

std::string KernelFile::misfit(const std::string& problem) const {
    const json& manifest = file_->manifest();
    const auto text = [&](const char* key) {
        const auto found = manifest.find(key);
        return found != manifest.end() && found->is_string() ? found->get<std::string>() : "";
    };
    if (text("mdcg_version") != MDCG_VERSION)
        return "was made by mdcg " + text("mdcg_version") + ", and this is mdcg " MDCG_VERSION;
    if (text("generator") != kernel_generator())
        return "was made by another build of mdcg " MDCG_VERSION;
    if (text("problem") != sha256_hex(problem.data(), problem.size()))
        return "was made for another package";
    return "";
}

bool KernelFile::has(const std::string& target) const {
    const json& manifest = file_->manifest();
    return member(manifest, "host").contains(target) ||
           member(manifest, "devices").contains(target);
}

const Tensor* KernelFile::tensor(const json& name) const {
    const Tensor* found = name.is_string() ? file_->find(name.get<std::string>()) : nullptr;
    if (found == nullptr || found->dtype != Dtype::u8)
        file_->fail("names " + name.dump(-1, ' ', false, json::error_handler_t::replace) +
                    ", expected a tensor of bytes: make the file again");
    return found;
}

const Tensor* KernelFile::library(const std::string& target, int layer) const {
    const json& all = member(file_->manifest(), "host");
    const auto libraries = all.find(target);
    if (libraries == all.end() || !libraries->is_array() ||
        static_cast<std::size_t>(layer) >= libraries->size())
        file_->fail("has no kernels of layer " + std::to_string(layer) + " for " + target +
                    ": make the file again");
    const json& name = (*libraries)[static_cast<std::size_t>(layer)];
    return name.is_null() ? nullptr : tensor(name);
}

std::string KernelFile::compiler(const std::string& target) const {
    const json& found = member(member(file_->manifest(), "devices"), target);
    if (found.contains("hiprtc")) return "hiprtc " + found.value("hiprtc", "");
    return "NVRTC " + found.value("nvrtc", "");
}

int KernelFile::compiler_major(const std::string& target) const {
    const std::string name = compiler(target);
    return std::atoi(name.c_str() + name.find(' ') + 1);
}

const Tensor* KernelFile::code(const std::string& target, const std::string& key) const {
    const json& all = member(member(member(file_->manifest(), "devices"), target), "code");
    const auto found = all.find(key);
    return found == all.end() ? nullptr : tensor(*found);
}

std::vector<const json*> KernelFile::passes(int layer, const std::string& pass) const {
    std::vector<const json*> found;
    const json& manifest = file_->manifest();
    const auto named = manifest.find("passes");
    if (given_ == nullptr && (named == manifest.end() || !named->is_array())) return found;
    for (const json& each : given_ != nullptr ? *given_ : *named)
        if (each.is_object() && each.value("layer", -1) == layer && each.value("pass", "") == pass)
            found.push_back(&each);
    return found;
}

}  // namespace mdcg
