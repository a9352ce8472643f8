#pragma once
#include "kernels/activation.hpp"
#include "kernels/common.cuh"

INLINE T activate(int kind, T x, T& slope) { return activate<T>(Activation(kind), x, slope); }
