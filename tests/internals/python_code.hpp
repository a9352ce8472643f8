// Kernels of the engine without a package: Python compiles them.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/cuda/kernels.hpp"

class PythonCode : public mdcg::CudaCode {
public:
    const mdcg::KernelFile& file() override {
        throw std::logic_error("there is no package, and no pass of one");
    }
    std::vector<std::string> find(const std::vector<mdcg::CudaKernelSource>& texts,
                                  int capability) override {
        const pybind11::gil_scoped_acquire lock;
        std::vector<std::string> sources;
        for (const mdcg::CudaKernelSource& text : texts) sources.push_back(text.text);
        const pybind11::object load =
            pybind11::module_::import("mdcg.runtime.cuda_build").attr("load_cuda_kernels");
        return load(sources, "sm_" + std::to_string(capability)).cast<std::vector<std::string>>();
    }
    const mdcg::FoundKernels& found() const override { return found_; }

private:
    mdcg::FoundKernels found_;
};

inline mdcg::CudaTarget compiled_by_python(int device) {
    mdcg::CudaTarget place{device};
    place.code = std::make_shared<PythonCode>();
    return place;
}
