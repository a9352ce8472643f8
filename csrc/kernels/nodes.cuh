// Layers that treat every node by itself, as one program.
#include "kernels/gate.cuh"
#include "kernels/pointwise.cuh"
#include "kernels/rows.cuh"
