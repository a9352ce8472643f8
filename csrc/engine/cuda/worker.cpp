#include "engine/cuda/worker.hpp"

#include <map>

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

template <typename T>
char* CudaWorker<T>::device_scratch(std::size_t bytes) {
    scratch_memory->reserve(bytes);
    return scratch_memory->template as<char>();
}

RegisterCudaLayer::RegisterCudaLayer(const char* type, LayerFactory<float> f32,
                                     LayerFactory<double> f64) {
    registry()[type] = {f32, f64};
}

template <>
LayerFactory<float> find_cuda_layer<float>(const std::string& type) {
    const auto found = registry().find(type);
    return found == registry().end() ? nullptr : found->second.f32;
}

template <>
LayerFactory<double> find_cuda_layer<double>(const std::string& type) {
    const auto found = registry().find(type);
    return found == registry().end() ? nullptr : found->second.f64;
}

template class CudaWorker<float>;
template class CudaWorker<double>;

}  // namespace mdcg
