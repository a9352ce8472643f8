// Rows that other processes get and give; a warp for each.
#pragma once
#include "kernels/pointwise.cuh"

extern "C" __global__ void __launch_bounds__(256) gather_rows(const GatherArguments<T> p) {
    const Long i = warp_number();
    if (i >= p.count) return;
    const int node = p.node[i];
    EACH_PACK (p.width)
        put(p.out + i * p.width + j, node < 0 ? Pack{} : load(p.rows + Long(node) * p.width + j));
}

extern "C" __global__ void __launch_bounds__(256) add_rows(const AddArguments<T> p) {
    const Long i = warp_number();
    if (i >= p.count) return;
    EACH_PACK (p.width) {
        T* const out = p.rows + Long(p.node[i]) * p.width + j;
        Pack sum = load(out);
        for (int k = p.first[i]; k < p.first[i + 1]; ++k) {
            const Pack more = load(p.received + Long(p.place[k]) * p.width + j);
#pragma unroll
            EACH_ITEM sum.v[i] += more.v[i];
        }
        put(out, sum);
    }
}
