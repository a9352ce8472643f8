// Bindings of the engine.
#pragma once

#include <pybind11/pybind11.h>

void register_engine(pybind11::module_& m);
void register_kernels(pybind11::module_& m);
void register_neighbors(pybind11::module_& m);
