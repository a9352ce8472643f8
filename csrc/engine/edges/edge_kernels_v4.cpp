// Compiled with -march=x86-64-v4.
#if defined(__x86_64__)
#include "engine/edges/edge_kernels_impl.hpp"

namespace mdcg {

extern const EdgeKernels<float> edge_kernels_v4_float;
extern const EdgeKernels<double> edge_kernels_v4_double;
const EdgeKernels<float> edge_kernels_v4_float = make_edge_kernels<float>();
const EdgeKernels<double> edge_kernels_v4_double = make_edge_kernels<double>();

}  // namespace mdcg
#endif
