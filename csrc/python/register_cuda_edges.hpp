// Bindings of the CUDA engine's functions of edges, for tests.
#pragma once

#include <pybind11/pybind11.h>

void register_cuda_edges(pybind11::module_& m);
