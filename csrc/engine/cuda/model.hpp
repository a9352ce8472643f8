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

// The engine's own texts that a package's evaluation runs on devices of a compute capability such
// as 90; no device is needed. `passes`: what Python has generated, as a kernel file describes it.
// Throws EngineError.
std::vector<CudaKernelSource> cuda_kernel_sources(std::shared_ptr<const Package> package,
                                                  int capability, const std::string& passes);

// Throws EngineError where a text is not "" or a name of the package's precision: "fp32" or
// "float32", "fp64" or "float64".
void check_precision(const std::string& text, const Package& package);

std::unique_ptr<Model> open_cuda_model(std::shared_ptr<const Package> package, ModelInfo info,
                                       int device, KernelChoice choice);

}  // namespace mdcg
