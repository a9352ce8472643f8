#include "engine/registry.hpp"

#include <map>
#include <stdexcept>

namespace mdcg {

namespace {

struct Factories {
    LayerFactory<float> f32;
    LayerFactory<double> f64;
};

// Inside a function: made before the first registration, whatever the order of the objects.
std::map<std::string, Factories>& registry() {
    static std::map<std::string, Factories> all;
    return all;
}

}  // namespace

RegisterLayer::RegisterLayer(const char* type, LayerFactory<float> f32, LayerFactory<double> f64) {
    registry()[type] = {f32, f64};
}

template <>
LayerFactory<float> find_layer<float>(const std::string& type) {
    const auto found = registry().find(type);
    return found == registry().end() ? nullptr : found->second.f32;
}

template <>
LayerFactory<double> find_layer<double>(const std::string& type) {
    const auto found = registry().find(type);
    return found == registry().end() ? nullptr : found->second.f64;
}

std::vector<std::string> layer_types() {
    std::vector<std::string> names;
    for (const auto& entry : registry()) names.push_back(entry.first);
    return names;
}

}  // namespace mdcg
