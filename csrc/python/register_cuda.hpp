// Bindings of the CUDA driver.
#pragma once

#include <pybind11/pybind11.h>

void register_cuda(pybind11::module_& m);
