// Bindings of the engine's functions of edges, for conversion and tests.
#pragma once

#include <pybind11/pybind11.h>

void register_edges(pybind11::module_& m);
