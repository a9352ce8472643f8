#include "engine/cuda/bundle.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/sha256.hpp"
#include "engine/error.hpp"
#include "engine/fields.hpp"

namespace mdcg {

namespace {

// Generations differ in the first digits: 80, 86 and 89 are one, 100 and 103, 120 and 121.
bool runs(int code, int device) { return code / 10 == device / 10 && code <= device; }

}  // namespace

int parse_cuda_target(const std::string& text) {
    const bool good =
        text.size() >= 5 && text.size() <= 6 && text.compare(0, 3, "sm_") == 0 &&
        std::all_of(text.begin() + 3, text.end(), [](char c) { return c >= '0' && c <= '9'; });
    return good ? std::stoi(text.substr(3)) : 0;
}

CudaBundle::CudaBundle(std::shared_ptr<const Package> package) : package_(std::move(package)) {
    const Fields manifest(package_->manifest(), *package_, "manifest");
    version_ = manifest.text("mdcg_version", "");
    for (const Fields& fields : manifest.objects("cuda_binaries")) {
        const std::string target = fields.text("target");
        Binary binary{parse_cuda_target(target), fields.text("key"), fields.text("sha256"),
                      package_->find(fields.text("tensor"))};
        if (binary.capability == 0)
            fields.fail("target", "\"" + target + "\"", "a target such as \"sm_90\"");
        if (binary.tensor == nullptr || binary.tensor->dtype != Dtype::u8)
            fields.fail("tensor", "\"" + fields.text("tensor") + "\"", "a tensor of bytes");
        binaries_.push_back(std::move(binary));
    }
    std::stable_sort(binaries_.begin(), binaries_.end(),
                     [](const Binary& a, const Binary& b) { return a.capability > b.capability; });
}

std::string CudaBundle::target(int capability) const {
    for (const Binary& binary : binaries_)
        if (runs(binary.capability, capability)) return "sm_" + std::to_string(binary.capability);
    return "";
}

std::string CudaBundle::find(const std::string& key, int capability) const {
    for (const Binary& binary : binaries_) {
        if (binary.key != key || !runs(binary.capability, capability)) continue;
        const auto* const bytes = static_cast<const char*>(binary.tensor->data);
        const auto size = static_cast<std::size_t>(binary.tensor->count);
        if (sha256_hex(bytes, size) != binary.sha256)
            package_->fail("the machine code for sm_" + std::to_string(binary.capability) + " in " +
                           binary.tensor->name +
                           " is damaged (its SHA-256 differs): copy the file again");
        return std::string(bytes, size);
    }
    return "";
}

}  // namespace mdcg
