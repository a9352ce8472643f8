// Packages on devices.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/kernels.hpp"
#include "engine/model.hpp"

namespace mdcg {

// The engine's own texts that a package's evaluation runs on devices of a compute capability such
// as 90; no device is needed. `passes`: what Python has generated, as a kernel file describes it.
// Throws EngineError.
std::vector<CudaKernelSource> cuda_kernel_sources(std::shared_ptr<const Package> package,
                                                  int capability, const std::string& passes);

std::unique_ptr<Model> open_cuda_model(std::shared_ptr<const Package> package, ModelInfo info,
                                       int device, KernelChoice choice);

}  // namespace mdcg
