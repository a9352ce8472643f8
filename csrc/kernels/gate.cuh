// Scalars through activations; other blocks times activations of scalars. A thread has a channel
// of a node: one of a block of out forward, one of a block of x backward, with all components.
#pragma once
#include "kernels/activation.cuh"
#include "kernels/nodes.hpp"

INLINE T activated(const GateEntry& e, T x, T& slope) {
    const T value = activate(e.activation, x, slope);
    slope *= T(e.factor);
    return T(e.factor) * value;
}

// Channel of a block: channels of all blocks stand one after the other, padded.
INLINE int channel_in_block(const int* columns, const GateBlock* blocks, int channel) {
    const int block = columns[channel];
    for (int b = 0; b < block; ++b) channel -= blocks[b].stride;
    return channel;
}

extern "C" __global__ void __launch_bounds__(256) gate_forward(const GateArguments<T> p) {
    const int t = int(thread_number());
    if (t >= p.threads) return;
    const Long n = unsigned(t) / unsigned(p.channels);
    const int channel = t - int(n) * p.channels;
    const int u = channel_in_block(p.columns, p.out_blocks, channel);
    const GateBlock& to = p.out_blocks[p.columns[channel]];
    const GateEntry& e = p.entries[to.entry];
    const GateBlock& from = p.x_blocks[e.in];
    const T* const x = p.x + n * p.x_width;
    T* const out = p.out + n * p.out_width + to.offset + u;
    T slope, factor = T(0);
    if (u < to.mul) {
        const int gate = e.gate < 0 ? from.offset : p.x_blocks[e.gate].offset + e.gate_offset;
        factor = activated(e, x[gate + u], slope);
    }
    if (e.gate < 0) {
        *out = factor;
        return;
    }
    for (int m = 0; m < to.dim; ++m)
        out[m * to.stride] = u < to.mul ? factor * x[from.offset + m * from.stride + u] : T(0);
}

extern "C" __global__ void __launch_bounds__(256) gate_backward(const GateArguments<T> p) {
    const int t = int(thread_number());
    if (t >= p.threads) return;
    const Long n = unsigned(t) / unsigned(p.channels);
    const int channel = t - int(n) * p.channels, b = p.columns[channel];
    const int u = channel_in_block(p.columns, p.x_blocks, channel);
    const GateBlock& block = p.x_blocks[b];
    const T* const x = p.x + n * p.x_width;
    const T* const g = p.g + n * p.out_width;
    T* const dx = p.dx + n * p.x_width + block.offset + u;
    int add = p.add;
    for (int i = block.first_use; i < block.last_use && u < block.mul; ++i) {
        const GateEntry& e = p.entries[p.uses[i]];
        const GateBlock& to = p.out_blocks[e.out];
        const T* const dy = g + to.offset;
        T slope;
        if (e.gate < 0) {
            activated(e, x[block.offset + u], slope);
            *dx = (add ? *dx : T(0)) + dy[u] * slope;
            add = 1;
            continue;
        }
        if (e.in == b) {
            const T factor = activated(e, x[p.x_blocks[e.gate].offset + e.gate_offset + u], slope);
            for (int m = 0; m < block.dim; ++m) {
                T* const d = dx + m * block.stride;
                *d = (add ? *d : T(0)) + dy[m * to.stride + u] * factor;
            }
            add = 1;
        }
        const int v = u - e.gate_offset;
        if (e.gate != b || v < 0 || v >= to.mul) continue;
        const GateBlock& from = p.x_blocks[e.in];
        activated(e, x[block.offset + u], slope);
        T dot = T(0);
        for (int m = 0; m < to.dim; ++m)
            dot += x[from.offset + m * from.stride + v] * dy[m * to.stride + v];
        *dx = (add ? *dx : T(0)) + dot * slope;
        add = 1;
    }
    for (int m = 0; m < block.dim && !add; ++m) dx[m * block.stride] = T(0);
}
