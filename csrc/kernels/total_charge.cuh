// Charges of two spins that are shifted to the total of the system; see
// csrc/engine/ops/system/total_charge.hpp.
#include "kernels/common.cuh"
#include "kernels/total_charge.hpp"

INLINE void add_of_warp(Long* to, Long value) {
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2) value += __shfl_xor_sync(0xffffffffu, value, bit);
    if (threadIdx.x % 32 == 0) atomicAdd((unsigned long long*)to, (unsigned long long)value);
}

INLINE double sum_of(const Long* sums, int i) {
    return double(sums[2 * i]) * 0x1p-20 + double(sums[2 * i + 1]) * 0x1p-58;
}

// A thread has an atom. Integers add in any order.
extern "C" __global__ void __launch_bounds__(128) charge_sums(const TotalChargeArguments<T> a) {
    const Long atom = thread_number();
    double numbers[CHARGE_SUMS] = {}, size = 0;
    if (atom < a.num_atoms)
        for (int s = 0; s < 2; ++s) {
            const double weight = double(a.weights[atom * a.weight_width + s]);
            if (a.g != nullptr) {
                numbers[s] = weight * double(a.g[atom * a.width + s]);
            } else {
                numbers[s] = double(a.x[atom * a.width + s]);
                numbers[2 + s] = weight;
            }
            size += fabs(numbers[s]) + fabs(numbers[2 + s]);
        }
    if (!(size < MAX_CHARGE)) size = MAX_CHARGE;
    Long* const sums = a.g != nullptr ? a.slopes : a.sums;
    for (int i = 0; i < CHARGE_SUMS; ++i) {
        Long high = 0, low = 0;
        if (size < MAX_CHARGE) {
            high = llrint(numbers[i] * 0x1p20);
            low = llrint((numbers[i] - double(high) * 0x1p-20) * 0x1p58);
        }
        add_of_warp(sums + 2 * i, high);
        add_of_warp(sums + 2 * i + 1, low);
    }
    add_of_warp(sums + 2 * CHARGE_SUMS, Long(ceil(TOTAL_UNITS * size)));
}

// A thread has an atom.
extern "C" __global__ void __launch_bounds__(128) fill_charges(const TotalChargeArguments<T> a) {
    const Long atom = thread_number();
    const Long* const total = (a.g != nullptr ? a.slopes : a.sums) + 2 * CHARGE_SUMS;
    if (atom == 0 && a.failures != nullptr && double(*total) >= TOTAL_UNITS * MAX_CHARGE)
        a.failures[0] = 1;
    if (atom >= a.num_atoms) return;
    double missing[2], weight[2];
    bool is_zero[2];
    for (int s = 0; s < 2; ++s) {
        missing[s] = a.wanted[s] - sum_of(a.sums, s);
        weight[s] = sum_of(a.sums, 2 + s);
        is_zero[s] = weight[s] == 0;
        if (is_zero[s]) weight[s] = 1;
    }
    const T* const weights = a.weights + atom * a.weight_width;
    if (a.g == nullptr) {
        T* const out = a.out + atom * a.width;
        for (int i = 0; i < a.width; ++i) out[i] = a.x[atom * a.width + i];
        for (int s = 0; s < 2; ++s) out[s] += T(double(weights[s]) / weight[s] * missing[s]);
        return;
    }
    const T* const g = a.g + atom * a.width;
    if (a.dx != nullptr) {
        T* const d = a.dx + atom * a.width;
        for (int i = 0; i < a.width; ++i) d[i] = (a.add_x ? d[i] : T(0)) + g[i];
        for (int s = 0; s < 2; ++s) d[s] -= T(sum_of(a.slopes, s) / weight[s]);
    }
    if (a.d_weights == nullptr) return;
    T* const d = a.d_weights + atom * a.weight_width;
    for (int i = 0; i < a.weight_width && !a.add_weights; ++i) d[i] = 0;
    for (int s = 0; s < 2; ++s) {
        const double mean = is_zero[s] ? 0.0 : sum_of(a.slopes, s) / weight[s];
        d[s] += T((double(g[s]) - mean) * missing[s] / weight[s]);
    }
}
