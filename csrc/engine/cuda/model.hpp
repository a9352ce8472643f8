// Packages on devices.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/kernels.hpp"
#include "engine/model.hpp"

namespace mdcg {

// "cuda" (the first) and "cuda:N" are numbers of devices, "cpu" is -1; throws EngineError where it
// is nothing of that, or where there is no such device.
int parse_device(const std::string& text);

// The texts that a package's evaluation runs on devices of a compute capability such as 90; no
// device is needed. Throws EngineError.
std::vector<CudaText> cuda_texts(const Package& package, int capability);

// What "", "fp32", "fp64", "tf32" or "bf16" means for a package on a device, or on the processor
// (-1). Throws EngineError where it cannot be had.
CudaPrecision parse_precision(const std::string& text, const Package& package, int device);

std::unique_ptr<Model> open_cuda_model(std::shared_ptr<const Package> package, ModelInfo info,
                                       int threads, int device, CudaPrecision precision);

}  // namespace mdcg
