#include "engine/cuda/worker.hpp"

namespace mdcg {

namespace {

// Inside a function, as that of the processor's layers.
LayerTypes& types() {
    static LayerTypes all;
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
    types().add(type, f32, f64);
}

template <typename T>
LayerFactory<T> find_cuda_layer(const std::string& type) {
    return types().find<T>(type);
}

template LayerFactory<float> find_cuda_layer<float>(const std::string& type);
template LayerFactory<double> find_cuda_layer<double>(const std::string& type);
template class CudaWorker<float>;
template class CudaWorker<double>;

}  // namespace mdcg
