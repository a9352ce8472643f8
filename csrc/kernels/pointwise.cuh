// Layers that treat every node by itself. Most kernels give a warp to a node; its lanes take 16
// bytes each. Nothing is declared as not overlapping: a layer may read one value twice.
#pragma once
#include "kernels/common.cuh"
#include "kernels/nodes.hpp"

#define EACH_ITEM for (int i = 0; i < LANE_ITEMS; ++i)

INLINE Pack load(const T* p) { return *(const Pack*)p; }
INLINE void put(T* p, Pack a) { *(Pack*)p = a; }
INLINE void put_or_add(T* p, Pack a, int add) {
    if (add) {
        const Pack old = load(p);
#pragma unroll
        EACH_ITEM a.v[i] += old.v[i];
    }
    put(p, a);
}
INLINE Pack times(T s, Pack a) {
#pragma unroll
    EACH_ITEM a.v[i] *= s;
    return a;
}
INLINE Pack times(Pack a, Pack b) {
#pragma unroll
    EACH_ITEM a.v[i] *= b.v[i];
    return a;
}

INLINE Long warp_number() { return thread_number() / 32; }
INLINE int lane_number() { return threadIdx.x % 32; }
#define EACH_PACK(width) \
    for (int j = lane_number() * LANE_ITEMS; j < int(width); j += 32 * LANE_ITEMS)

extern "C" __global__ void __launch_bounds__(256) type_rows(const TypeRowsArguments<T> p) {
    const Long n = warp_number();
    if (n >= p.count) return;
    const T* const row = p.table + Long(p.types[n]) * p.width;
    EACH_PACK (p.width) put(p.out + n * p.width + j, load(row + j));
}

extern "C" __global__ void __launch_bounds__(256) scale(const ScaleArguments<T> p) {
    const Long n = warp_number();
    if (n >= p.count) return;
    const T factor = p.factor[p.typed ? p.types[n] : 0];
    EACH_PACK (p.width) {
        const Long at = n * p.width + j;
        put_or_add(p.out + at, times(factor, load(p.x + at)), p.add);
    }
}

INLINE T normalizer(const NormalizeArguments<T>& p, Long n) {
    return T(1) / (T(p.beta) * p.density[n * p.density_width] + T(p.alpha));
}
extern "C" __global__ void __launch_bounds__(256) normalize_forward(const NormalizeArguments<T> p) {
    const Long n = warp_number();
    if (n >= p.count) return;
    const T s = normalizer(p, n);
    EACH_PACK (p.width) {
        const Long at = n * p.width + j;
        put(p.out + at, times(s, load(p.x + at)));
    }
}
extern "C" __global__ void __launch_bounds__(256)
    normalize_backward(const NormalizeArguments<T> p) {
    const Long n = warp_number();
    if (n >= p.count) return;
    const T s = normalizer(p, n);
    T dot = T(0);
    EACH_PACK (p.width) {
        const Long at = n * p.width + j;
        const Pack g = load(p.g + at), x = load(p.x + at);
#pragma unroll
        EACH_ITEM dot += x.v[i] * g.v[i];
        if (p.dx != nullptr) put_or_add(p.dx + at, times(s, g), p.add_x);
    }
    if (p.d_density == nullptr) return;
    for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, step);
    __syncwarp();
    for (int j = lane_number(); j < p.density_width; j += 32) {
        T* const d = p.d_density + n * p.density_width + j;
        const T old = p.add_density ? *d : T(0);
        *d = j == 0 ? old - T(p.beta) * s * s * dot : old;
    }
}

extern "C" __global__ void __launch_bounds__(256) product_forward(const ProductArguments<T> p) {
    const Long at = thread_number() * LANE_ITEMS;
    if (at < p.items) put(p.out + at, times(load(p.x + at), load(p.y + at)));
}
extern "C" __global__ void __launch_bounds__(256) product_backward(const ProductArguments<T> p) {
    const Long at = thread_number() * LANE_ITEMS;
    if (at >= p.items) return;
    const Pack g = load(p.g + at), x = load(p.x + at), y = load(p.y + at);
    if (p.dx != nullptr) put_or_add(p.dx + at, times(g, y), p.add_x);
    if (p.dy != nullptr) put_or_add(p.dy + at, times(g, x), p.add_y);
}

extern "C" __global__ void __launch_bounds__(256)
    sum_forward(const __grid_constant__ SumArguments<T> p) {
    const Long at = thread_number() * LANE_ITEMS;
    if (at >= p.items) return;
    Pack sum = p.add_sum ? load(p.sum + at) : Pack{};
    for (int k = 0; k < p.num_terms; ++k) {
        const Pack term = load(p.term[k] + at);
#pragma unroll
        EACH_ITEM sum.v[i] += term.v[i];
    }
    put(p.sum + at, sum);
}
extern "C" __global__ void __launch_bounds__(256)
    sum_backward(const __grid_constant__ SumArguments<T> p) {
    const Long at = thread_number() * LANE_ITEMS;
    if (at >= p.items) return;
    const Pack g = load(p.sum + at);
    for (int k = 0; k < p.num_terms; ++k) put_or_add(p.term[k] + at, g, p.add[k]);
}

extern "C" __global__ void __launch_bounds__(256) energy_forward(const EnergyArguments<T> p) {
    const Long n = thread_number();
    if (n >= p.count) return;
    const int type = p.types[n];
    p.energies[n] += p.scale[type] * double(p.x[n * p.width + p.channel]) + p.shift[type];
}
extern "C" __global__ void __launch_bounds__(256) energy_backward(const EnergyArguments<T> p) {
    const Long n = warp_number();
    if (n >= p.count) return;
    const double weight = p.weights != nullptr ? p.weights[n] : 1.0;
    for (int j = lane_number(); j < p.width; j += 32) {
        T* const d = p.dx + n * p.width + j;
        const T g = j == p.channel ? T(p.scale[p.types[n]] * weight) : T(0);
        *d = p.add ? *d + g : g;
    }
}
