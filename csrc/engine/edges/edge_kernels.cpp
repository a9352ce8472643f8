#include "engine/edges/edge_kernels.hpp"

#include <string>

#include "core/cpu.hpp"
#include "engine/edges/edge_kernels_impl.hpp"

namespace mdcg {

#if defined(__x86_64__)
extern const EdgeKernels<float> edge_kernels_v3_float, edge_kernels_v4_float;
extern const EdgeKernels<double> edge_kernels_v3_double, edge_kernels_v4_double;
#endif

namespace {

const EdgeKernels<float> baseline_float = make_edge_kernels<float>();
const EdgeKernels<double> baseline_double = make_edge_kernels<double>();

template <typename T>
const EdgeKernels<T>& choose(const std::string& level) {
    if constexpr (sizeof(T) == 4) {
#if defined(__x86_64__)
        if (level == "x86-64-v4") return edge_kernels_v4_float;
        if (level == "x86-64-v3") return edge_kernels_v3_float;
#endif
        return baseline_float;
    } else {
#if defined(__x86_64__)
        if (level == "x86-64-v4") return edge_kernels_v4_double;
        if (level == "x86-64-v3") return edge_kernels_v3_double;
#endif
        return baseline_double;
    }
}

}  // namespace

template <typename T>
const EdgeKernels<T>& edge_kernels(const char* level) {
    static const EdgeKernels<T>& best = choose<T>(instruction_set_level());
    return level == nullptr ? best : choose<T>(level);
}

template const EdgeKernels<float>& edge_kernels<float>(const char*);
template const EdgeKernels<double>& edge_kernels<double>(const char*);

}  // namespace mdcg
