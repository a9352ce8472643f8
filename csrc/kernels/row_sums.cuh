#include "kernels/common.cuh"
#include "kernels/row_sums.hpp"

extern "C" __global__ void sum_rows(RowSumArguments a) {
    __shared__ double part[SUM_THREADS];
    const int t = threadIdx.x;
    for (Long c = 0; c < a.width; ++c) {
        double sum = 0;
        for (int k = 0; k < SUM_ROWS / SUM_THREADS; ++k) {
            const Long row = SUM_ROWS * Long(blockIdx.x) + SUM_THREADS * k + t;
            if (row < a.count) sum += a.rows[row * a.width + c];
        }
        part[t] = sum;
        __syncthreads();
        for (int half = SUM_THREADS / 2; half > 0; half /= 2) {
            if (t < half) part[t] += part[t + half];
            __syncthreads();
        }
        if (t == 0) a.out[blockIdx.x * a.width + c] = part[0];
        __syncthreads();
    }
}
