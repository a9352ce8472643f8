#include "engine/registry.hpp"

namespace mdcg {

namespace {

// Inside a function: made before the first registration, whatever the order of the objects.
LayerTypes& types() {
    static LayerTypes all;
    return all;
}

}  // namespace

RegisterLayer::RegisterLayer(const char* type, LayerFactory<float> f32, LayerFactory<double> f64) {
    types().add(type, f32, f64);
}

template <typename T>
LayerFactory<T> find_layer(const std::string& type) {
    return types().find<T>(type);
}

std::vector<std::string> layer_types() { return types().names(); }

template LayerFactory<float> find_layer<float>(const std::string& type);
template LayerFactory<double> find_layer<double>(const std::string& type);

}  // namespace mdcg
