#pragma once
#include "kernels/common.cuh"

INLINE T log_of_1_plus(T x) { return log1p(x); }

#include "kernels/activation.hpp"

INLINE T activate(int kind, T x, T& slope) { return activate<T>(Activation(kind), x, slope); }
