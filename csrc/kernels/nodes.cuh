// Kernels of the functions of row_functions.hpp, and of rows that processes exchange.
#include "kernels/activation.cuh"
#include "kernels/nodes.hpp"
#include "kernels/row_functions.hpp"

#define EACH_ITEM for (int i = 0; i < LANE_ITEMS; ++i)

namespace mdcg {

INLINE Pack operator*(T s, Pack a) {
#pragma unroll
    EACH_ITEM a.v[i] *= s;
    return a;
}
INLINE Pack operator*(Pack a, Pack b) {
#pragma unroll
    EACH_ITEM a.v[i] *= b.v[i];
    return a;
}
INLINE Pack operator+(Pack a, Pack b) {
#pragma unroll
    EACH_ITEM a.v[i] += b.v[i];
    return a;
}

}  // namespace mdcg

// A warp has a row; its lanes take 16 bytes each.
struct WarpRow {
    Long number;
    int lane;

    struct Sum {
        T value;
        INLINE void add(Pack a) {
#pragma unroll
            EACH_ITEM value += a.v[i];
        }
    };
    INLINE WarpRow() : number(thread_number() / 32), lane(threadIdx.x % 32) {}
    INLINE Pack load(const T* p) const { return *(const Pack*)p; }
    INLINE void put(T* p, Pack a, int add = 0) const {
        if (add) a = load(p) + a;
        *(Pack*)p = a;
    }
    template <typename Body>
    INLINE void each(int width, const Body& body) const {
        for (int j = lane * LANE_ITEMS; j < width; j += 32 * LANE_ITEMS) body(j);
    }
    template <typename Body>
    INLINE void each_item(int width, const Body& body) const {
        for (int j = lane; j < width; j += 32) body(j);
    }
    // Sums over all lanes. No lane returns before all lanes have read the row.
    INLINE T total(Sum sum) const {
        for (int step = 16; step > 0; step /= 2)
            sum.value += __shfl_xor_sync(0xffffffffu, sum.value, step);
        __syncwarp();
        return sum.value;
    }
};

// A thread has a row.
struct ThreadRow {
    Long number;
    INLINE ThreadRow() : number(thread_number()) {}
};

// A thread has a channel. It loads zero unless `begin` <= 0 < `end`.
struct ChannelRow : ThreadRow {
    using Value = T;
    static constexpr int CHANNELS = 1;
    INLINE T load(const T* p) const { return *p; }
    INLINE T load(const T* p, int begin, int end) const {
        return begin <= 0 && 0 < end ? *p : T(0);
    }
    INLINE T keep(T value, int end) const { return 0 < end ? value : T(0); }
    INLINE void put(T* p, T value) const { *p = value; }
};

extern "C" __global__ void __launch_bounds__(256) type_rows_forward(const TypeRows<T> p) {
    const WarpRow row;
    if (row.number < p.count) p.forward(row);
}
extern "C" __global__ void __launch_bounds__(256) scale_forward(const Scale<T> p) {
    const WarpRow row;
    if (row.number < p.count) p.forward(row);
}
extern "C" __global__ void __launch_bounds__(256) normalize_forward(const Normalize<T> p) {
    const WarpRow row;
    if (row.number < p.count) p.forward(row);
}
extern "C" __global__ void __launch_bounds__(256) normalize_backward(const Normalize<T> p) {
    const WarpRow row;
    if (row.number < p.count) p.backward(row);
}
extern "C" __global__ void __launch_bounds__(256) product_forward(const Product<T> p) {
    const WarpRow row;
    if (row.number < p.count) p.forward(row);
}
extern "C" __global__ void __launch_bounds__(256) product_backward(const Product<T> p) {
    const WarpRow row;
    if (row.number < p.count) p.backward(row);
}
extern "C" __global__ void __launch_bounds__(256) dot_forward(const Dot<T> p) {
    const WarpRow row;
    if (row.number < p.count) p.forward(row);
}
extern "C" __global__ void __launch_bounds__(256) dot_backward(const Dot<T> p) {
    const WarpRow row;
    if (row.number < p.count) p.backward(row);
}
extern "C" __global__ void __launch_bounds__(256) modulate_forward(const Modulate<T> p) {
    const WarpRow row;
    if (row.number < p.count) p.forward(row);
}
extern "C" __global__ void __launch_bounds__(256) modulate_backward(const Modulate<T> p) {
    const WarpRow row;
    if (row.number < p.count) p.backward(row);
}
extern "C" __global__ void __launch_bounds__(256) layer_norm_forward(const LayerNorm<T> p) {
    const WarpRow row;
    if (row.number < p.count) p.forward(row);
}
extern "C" __global__ void __launch_bounds__(256) layer_norm_backward(const LayerNorm<T> p) {
    const WarpRow row;
    if (row.number < p.count) p.backward(row);
}
extern "C" __global__ void __launch_bounds__(256) rms_norm_forward(const RmsNorm<T> p) {
    const WarpRow row;
    if (row.number < p.count) p.forward(row);
}
extern "C" __global__ void __launch_bounds__(256) rms_norm_backward(const RmsNorm<T> p) {
    const WarpRow row;
    if (row.number < p.count) p.backward(row);
}
extern "C" __global__ void __launch_bounds__(256) sum_forward(const __grid_constant__ Sum<T> p) {
    const WarpRow row;
    if (row.number < p.count) p.forward(row);
}
extern "C" __global__ void __launch_bounds__(256) sum_backward(const __grid_constant__ Sum<T> p) {
    const WarpRow row;
    if (row.number < p.count) p.backward(row);
}
extern "C" __global__ void __launch_bounds__(256) energy_forward(const Energy<T> p) {
    const ThreadRow row;
    if (row.number < p.count) p.forward(row);
}
extern "C" __global__ void __launch_bounds__(256) energy_backward(const Energy<T> p) {
    const WarpRow row;
    if (row.number < p.count) p.backward(row);
}
extern "C" __global__ void __launch_bounds__(256)
    reference_weights_forward(const ReferenceWeights<T> p) {
    const ThreadRow row;
    if (row.number < p.count) p.forward(row);
}
extern "C" __global__ void __launch_bounds__(256)
    reference_weights_backward(const ReferenceWeights<T> p) {
    const ThreadRow row;
    if (row.number < p.count) p.backward(row);
}
extern "C" __global__ void __launch_bounds__(256) gate_forward(const Gate<T> p) {
    const ChannelRow row;
    if (row.number < p.count) p.forward(row);
}
extern "C" __global__ void __launch_bounds__(256) gate_backward(const Gate<T> p) {
    const ChannelRow row;
    if (row.number < p.count) p.backward(row);
}

extern "C" __global__ void __launch_bounds__(256) gather_rows(const GatherArguments<T> p) {
    const WarpRow row;
    if (row.number >= p.count) return;
    const Long node = p.node[row.number];
    row.each(p.width, [&](int j) {
        row.put(p.out + row.number * p.width + j,
                node < 0 ? Pack{} : row.load(p.rows + node * p.width + j));
    });
}

extern "C" __global__ void __launch_bounds__(256) add_rows(const AddArguments<T> p) {
    const WarpRow row;
    if (row.number >= p.count) return;
    row.each(p.width, [&](int j) {
        T* const out = p.rows + Long(p.node[row.number]) * p.width + j;
        Pack sum = row.load(out);
        for (int k = p.first[row.number]; k < p.first[row.number + 1]; ++k)
            sum = sum + row.load(p.received + Long(p.place[k]) * p.width + j);
        row.put(out, sum);
    });
}
