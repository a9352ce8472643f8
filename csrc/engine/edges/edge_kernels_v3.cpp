// Compiled with -march=x86-64-v3.
#if defined(__x86_64__)
#include "engine/edges/edge_kernels_impl.hpp"

namespace mdcg {

extern const EdgeKernels<float> edge_kernels_v3_float;
extern const EdgeKernels<double> edge_kernels_v3_double;
const EdgeKernels<float> edge_kernels_v3_float = make_edge_kernels<float>();
const EdgeKernels<double> edge_kernels_v3_double = make_edge_kernels<double>();

}  // namespace mdcg
#endif
