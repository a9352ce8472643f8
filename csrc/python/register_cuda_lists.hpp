// Lists of edges on a device, for tests and timings.
#pragma once

#include <pybind11/pybind11.h>

void register_cuda_lists(pybind11::module_& m);
