// Operations on rows of nodes, written once for hosts and devices.
//
// Each struct holds the arguments of one operation; its members compute one row. The argument `Row`
// has the number of the row and says who computes it: a warp, one thread of a device, or one thread
// of a host. It loads and stores the items that one of them takes at once.
// kernels/nodes.cuh makes kernels of these structs, engine/backend/cpu/row_kernels.cpp makes loops.
// Pointers are not __restrict__, because an operation may read one value twice.
#pragma once

#include "kernels/activation.hpp"
#include "kernels/types.hpp"

namespace mdcg {

// out = table[type]
template <typename T>
struct TypeRows {
    T* out;            // [count * width]
    const T* table;    // [num_types * width]
    const int* types;  // [count]
    Long count;
    int width;

    template <class Row>
    MDCG_HD void forward(const Row& row) const {
        const T* const from = table + Long(types[row.number]) * width;
        T* const to = out + row.number * width;
        row.each(width, [&](int j) { row.put(to + j, row.load(from + j)); });
    }
};

// out (+)= factor[type] * x; the backward pass is the same function of the gradient of out
template <typename T>
struct Scale {
    const T* x;        // [count * width]
    T* out;            // [count * width]
    const T* factor;   // [num_types], or [1] where not `typed`
    const int* types;  // [count]
    Long count;
    int width, typed, add;

    template <class Row>
    MDCG_HD void forward(const Row& row) const {
        const T f = factor[typed ? types[row.number] : 0];
        const Long at = row.number * width;
        row.each(width, [&](int j) { row.put(out + at + j, f * row.load(x + at + j), add); });
    }
};

// out = x / (density * beta + alpha)
template <typename T>
struct Normalize {
    const T* x;  // [count * width]
    const T* y;  // [count * y_width], the density
    T* out;      // [count * width]
    const T* g;  // [count * width], gradient of out
    T* dx;       // [count * width], null: not wanted
    T* dy;       // [count * y_width], null: not wanted
    Long count;
    int width, y_width, add_x, add_y;
    double alpha, beta;

    MDCG_HD T factor(Long n) const { return T(1) / (T(beta) * y[n * y_width] + T(alpha)); }
    template <class Row>
    MDCG_HD void forward(const Row& row) const {
        const T s = factor(row.number);
        const Long at = row.number * width;
        row.each(width, [&](int j) { row.put(out + at + j, s * row.load(x + at + j)); });
    }
    template <class Row>
    MDCG_HD void backward(const Row& row) const {
        const T s = factor(row.number);
        const Long at = row.number * width;
        typename Row::Sum dot{};
        row.each(width, [&](int j) {
            const auto d = row.load(g + at + j);
            dot.add(row.load(x + at + j) * d);
            if (dx != nullptr) row.put(dx + at + j, s * d, add_x);
        });
        if (dy == nullptr) return;
        const T slope = T(beta) * s * s * row.total(dot);
        T* const d = dy + row.number * y_width;
        row.each_item(y_width, [&](int j) {
            const T old = add_y ? d[j] : T(0);
            d[j] = j == 0 ? old - slope : old;
        });
    }
};

// out = x * y, item by item
template <typename T>
struct Product {
    const T* x;  // [count * width]
    const T* y;  // [count * width]
    T* out;      // [count * width]
    const T* g;  // [count * width], gradient of out
    T* dx;       // [count * width], null: not wanted
    T* dy;       // [count * width], null: not wanted
    Long count;
    int width, add_x, add_y;

    template <class Row>
    MDCG_HD void forward(const Row& row) const {
        const Long at = row.number * width;
        row.each(width, [&](int j) {
            row.put(out + at + j, row.load(x + at + j) * row.load(y + at + j));
        });
    }
    template <class Row>
    MDCG_HD void backward(const Row& row) const {
        const Long at = row.number * width;
        row.each(width, [&](int j) {
            const auto d = row.load(g + at + j), a = row.load(x + at + j), b = row.load(y + at + j);
            if (dx != nullptr) row.put(dx + at + j, d * b, add_x);
            if (dy != nullptr) row.put(dy + at + j, d * a, add_y);
        });
    }
};

// out[u] = sum of x[c][u] y[c][u] over the components c of all blocks, which have the same channels
template <typename T>
struct Dot {
    const T* x;  // [count * components * channels]
    const T* y;  // [count * components * channels]
    T* out;      // [count * channels]
    const T* g;  // [count * channels], gradient of out
    T* dx;       // [count * components * channels], null: not wanted
    T* dy;       // [count * components * channels], null: not wanted
    Long count;
    int components, channels, add_x, add_y;

    template <class Row>
    MDCG_HD void forward(const Row& row) const {
        const Long at = row.number * components * channels;
        row.each(channels, [&](int j) {
            auto total = row.load(x + at + j) * row.load(y + at + j);
            for (int c = channels; c < components * channels; c += channels)
                total = total + row.load(x + at + c + j) * row.load(y + at + c + j);
            row.put(out + row.number * channels + j, total);
        });
    }
    template <class Row>
    MDCG_HD void backward(const Row& row) const {
        const Long at = row.number * components * channels;
        row.each(channels, [&](int j) {
            const auto d = row.load(g + row.number * channels + j);
            for (int c = j; c < components * channels; c += channels) {
                const auto a = row.load(x + at + c), b = row.load(y + at + c);
                if (dx != nullptr) row.put(dx + at + c, d * b, add_x);
                if (dy != nullptr) row.put(dy + at + c, d * a, add_y);
            }
        });
    }
};

// out[c][u] = x[c][u] y[block of c][u], where all blocks have the same channels
template <typename T>
struct Modulate {
    const T* x;        // [count * components * channels]
    const T* y;        // [count * blocks * channels]
    T* out;            // [count * components * channels]
    const T* g;        // [count * components * channels], gradient of out
    T* dx;             // [count * components * channels], null: not wanted
    T* dy;             // [count * blocks * channels], null: not wanted
    const int* first;  // [blocks + 1] first component of each block
    Long count;
    int blocks, channels, add_x, add_y;

    template <class Row>
    MDCG_HD void forward(const Row& row) const {
        const Long at = row.number * first[blocks] * channels;
        row.each(channels, [&](int j) {
            for (int b = 0; b < blocks; ++b) {
                const auto s = row.load(y + (row.number * blocks + b) * channels + j);
                for (int c = first[b] * channels; c < first[b + 1] * channels; c += channels)
                    row.put(out + at + c + j, s * row.load(x + at + c + j));
            }
        });
    }
    template <class Row>
    MDCG_HD void backward(const Row& row) const {
        const Long at = row.number * first[blocks] * channels;
        row.each(channels, [&](int j) {
            for (int b = 0; b < blocks; ++b) {
                const Long scalar = (row.number * blocks + b) * channels + j;
                const auto s = row.load(y + scalar);
                auto slope = T(0) * s;
                for (int c = first[b] * channels + j; c < first[b + 1] * channels; c += channels) {
                    const auto d = row.load(g + at + c), a = row.load(x + at + c);
                    slope = slope + d * a;
                    if (dx != nullptr) row.put(dx + at + c, d * s, add_x);
                }
                if (dy != nullptr) row.put(dy + scalar, slope, add_y);
            }
        });
    }
};

// out = (x - mean) / sqrt(variance + epsilon) weight + bias, over the channels of a row
template <typename T>
struct LayerNorm {
    const T* x;       // [count * width]
    T* out;           // [count * width]
    const T* g;       // [count * width], gradient of out
    T* dx;            // [count * width]
    const T* used;    // [width] one for each channel, and zeros behind them
    const T* weight;  // [width]
    const T* bias;    // [width]
    Long count;
    int width, channels, add;
    double epsilon;

    // Returns the mean and 1 / sqrt(variance + epsilon).
    template <class Row>
    MDCG_HD T find(const Row& row, T& scale) const {
        const T* const from = x + row.number * width;
        typename Row::Sum sum{}, squares{};
        row.each(width, [&](int j) { sum.add(row.load(from + j)); });
        const T mean = row.total(sum) / T(channels);
        row.each(width, [&](int j) {
            const auto a = row.load(from + j) + -mean * row.load(used + j);
            squares.add(a * a);
        });
        const double variance = double(row.total(squares)) / channels;
        scale = T(1 / square_root(variance + epsilon));
        return mean;
    }
    template <class Row>
    MDCG_HD void forward(const Row& row) const {
        T scale;
        const T mean = find(row, scale);
        const Long at = row.number * width;
        row.each(width, [&](int j) {
            const auto a = scale * (row.load(x + at + j) + -mean * row.load(used + j));
            row.put(out + at + j, a * row.load(weight + j) + row.load(bias + j));
        });
    }
    template <class Row>
    MDCG_HD void backward(const Row& row) const {
        T scale;
        const T mean = find(row, scale);
        const Long at = row.number * width;
        typename Row::Sum sum{}, along{};
        row.each(width, [&](int j) {
            const auto d = row.load(g + at + j) * row.load(weight + j);
            sum.add(d);
            along.add(d * (scale * (row.load(x + at + j) + -mean * row.load(used + j))));
        });
        const T shift = -row.total(sum) / T(channels), slope = -row.total(along) / T(channels);
        row.each(width, [&](int j) {
            const auto one = row.load(used + j);
            const auto a = scale * (row.load(x + at + j) + -mean * one);
            const auto d = row.load(g + at + j) * row.load(weight + j);
            row.put(dx + at + j, scale * (d + (shift * one + slope * a)), add);
        });
    }
};

// out = x weight / sqrt(sum of square x^2 + epsilon), over all items of a row
template <typename T>
struct RmsNorm {
    const T* x;       // [count * width]
    T* out;           // [count * width]
    const T* g;       // [count * width], gradient of out
    T* dx;            // [count * width]
    const T* square;  // [width] factors of squares, and zeros where rows are padded
    const T* weight;  // [width]
    Long count;
    int width, add;
    double epsilon;

    template <class Row>
    MDCG_HD T scale(const Row& row) const {
        const T* const from = x + row.number * width;
        typename Row::Sum squares{};
        row.each(width, [&](int j) {
            const auto a = row.load(from + j);
            squares.add(row.load(square + j) * a * a);
        });
        return T(1 / square_root(double(row.total(squares)) + epsilon));
    }
    template <class Row>
    MDCG_HD void forward(const Row& row) const {
        const T s = scale(row);
        const Long at = row.number * width;
        row.each(width, [&](int j) {
            row.put(out + at + j, s * (row.load(x + at + j) * row.load(weight + j)));
        });
    }
    template <class Row>
    MDCG_HD void backward(const Row& row) const {
        const T s = scale(row);
        const Long at = row.number * width;
        typename Row::Sum along{};
        row.each(width, [&](int j) {
            along.add(row.load(g + at + j) * row.load(weight + j) * (s * row.load(x + at + j)));
        });
        const T slope = -row.total(along);
        row.each(width, [&](int j) {
            const auto d = row.load(g + at + j) * row.load(weight + j);
            const auto a = row.load(square + j) * (s * row.load(x + at + j));
            row.put(dx + at + j, s * (d + slope * a), add);
        });
    }
};

// sum (+)= all terms; backward: every term (+)= sum
constexpr int SUM_TERMS = 8;  // most terms of one call
template <typename T>
struct Sum {
    T* sum;              // [count * width]
    T* term[SUM_TERMS];  // [count * width] each
    int add[SUM_TERMS];  // backward: add to the term
    Long count;
    int width, num_terms, add_sum;

    template <class Row>
    MDCG_HD void forward(const Row& row) const {
        const Long at = row.number * width;
        row.each(width, [&](int j) {
            auto total = row.load(term[0] + at + j);
            if (add_sum) total = row.load(sum + at + j) + total;
            for (int k = 1; k < num_terms; ++k) total = total + row.load(term[k] + at + j);
            row.put(sum + at + j, total);
        });
    }
    template <class Row>
    MDCG_HD void backward(const Row& row) const {
        const Long at = row.number * width;
        row.each(width, [&](int j) {
            const auto g = row.load(sum + at + j);
            for (int k = 0; k < num_terms; ++k) row.put(term[k] + at + j, g, add[k]);
        });
    }
};

// energy += scale[type] * x[channel] + shift[type], in double
template <typename T>
struct Energy {
    const T* x;             // [count * width]
    T* dx;                  // [count * width]
    double* energies;       // [count]
    const double* scale;    // [num_types]
    const double* shift;    // [num_types]
    const int* types;       // [count]
    const double* weights;  // [count] weights of the energies in the sum; null: ones
    Long count;
    int width, channel, add;

    template <class Row>
    MDCG_HD void forward(const Row& row) const {
        const Long n = row.number;
        const int type = types[n];
        energies[n] += scale[type] * double(x[n * width + channel]) + shift[type];
    }
    template <class Row>
    MDCG_HD void backward(const Row& row) const {
        const Long n = row.number;
        const double weight = weights != nullptr ? weights[n] : 1.0;
        T* const d = dx + n * width;
        row.each_item(width, [&](int j) {
            const T g = j == channel ? T(scale[types[n]] * weight) : T(0);
            d[j] = add ? d[j] + g : g;
        });
    }
};

// Weights of the reference atoms of D3 (engine/ops/node/reference_weights.cpp).
constexpr int MAX_REFERENCES = 7;  // most references of a type
template <typename T>
struct ReferenceWeights {
    const T* x;                // [count * x_width] coordination numbers
    T* out;                    // [count * out_width]
    const T* g;                // [count * out_width], gradient of out
    T* dx;                     // [count * x_width]
    const double* references;  // [num_types * MAX_REFERENCES], negative: none
    const int* types;          // [count]
    double steepness;
    Long count;
    int x_width, out_width, add;

    // Exponents are relative to the nearest reference, since all exponentials may be zero in
    // double.
    template <typename Number>
    MDCG_HD void find(const double* of, Number cn, Number* weights) const {
        Number nearest = 1e300, total = 0;
        MDCG_UNROLL
        for (int a = 0; a < MAX_REFERENCES; ++a) {
            const Number square = (cn - of[a]) * (cn - of[a]);
            if (of[a] >= 0 && square < nearest) nearest = square;
        }
        MDCG_UNROLL
        for (int a = 0; a < MAX_REFERENCES; ++a) {
            const Number square = (cn - of[a]) * (cn - of[a]);
            weights[a] = of[a] >= 0 ? exponential(-steepness * (square - nearest)) : 0.0;
            total += weights[a];
        }
        MDCG_UNROLL
        for (int a = 0; a < MAX_REFERENCES; ++a) weights[a] /= total;
    }
    template <class Row>
    MDCG_HD void forward(const Row& row) const {
        const Long n = row.number;
        double weights[MAX_REFERENCES];
        find(references + MAX_REFERENCES * types[n], double(x[n * x_width]), weights);
        T* const to = out + n * out_width;
        MDCG_UNROLL
        for (int a = 0; a < MAX_REFERENCES; ++a) to[a] = T(weights[a]);
        for (int a = MAX_REFERENCES; a < out_width; ++a) to[a] = T(0);
    }
    // dw_a/dcn = w_a (s_a - sum_b w_b s_b), where s_a is the derivative of the exponent.
    template <class Row>
    MDCG_HD void backward(const Row& row) const {
        const Long n = row.number;
        const double* const of = references + MAX_REFERENCES * types[n];
        const double cn = double(x[n * x_width]);
        const T* const dy = g + n * out_width;
        double weights[MAX_REFERENCES], mean = 0, slope = 0;
        find(of, cn, weights);
        MDCG_UNROLL
        for (int a = 0; a < MAX_REFERENCES; ++a) mean -= weights[a] * 2 * steepness * (cn - of[a]);
        MDCG_UNROLL
        for (int a = 0; a < MAX_REFERENCES; ++a)
            slope += double(dy[a]) * weights[a] * (-2 * steepness * (cn - of[a]) - mean);
        T* const d = dx + n * x_width;
        d[0] = (add ? d[0] : T(0)) + T(slope);
        for (int j = 1; j < x_width && !add; ++j) d[j] = T(0);
    }
};

// Scalars go through activations; other blocks are multiplied with activations of scalars.
struct GateBlock {
    int offset, stride, mul, dim;
    int first_use, last_use;  // blocks of x: positions in `uses`
    int entry;                // blocks of out: the entry that writes the block
};

// How a block of out is made.
struct GateEntry {
    int in, out, gate;  // numbers of blocks; gate -1: none, for scalars
    int gate_offset;    // channels
    Activation activation;
    double factor;
};

// A row is one channel of a node with all its components: of a block of out in the forward pass, of
// a block of x in the backward pass. Hosts take a vector of consecutive channels at once, which
// belong to one block. Channels that a block does not have are loaded as zeros.
template <typename T>
struct Gate {
    const T* x;                   // [nodes * x_width]
    T* out;                       // [nodes * out_width]
    const T* g;                   // [nodes * out_width], gradient of out
    T* dx;                        // [nodes * x_width]
    const GateBlock* x_blocks;    // [blocks of x]
    const GateBlock* out_blocks;  // [blocks of out]
    const GateEntry* entries;     // [blocks of out]
    const int* uses;              // [last_use of the last block of x] numbers of entries
    const int* x_columns;         // [channels] block of each channel of a row of x, with padding
    const int* out_columns;       // [channels] the same for a row of out
    Long count;                   // nodes times channels, less than 2^31
    int channels, x_width, out_width, add;

    template <typename V>
    MDCG_HD V activated(const GateEntry& e, V value, V& slope) const {
        const V y = activate<T>(e.activation, value, slope);
        slope *= T(e.factor);
        return T(e.factor) * y;
    }
    // `channel` counts the padded channels of all blocks.
    MDCG_HD int channel_in_block(const GateBlock* blocks, int block, int channel) const {
        for (int b = 0; b < block; ++b) channel -= blocks[b].stride;
        return channel;
    }

    template <class Row>
    MDCG_HD void forward(const Row& row) const {
        const Long n = unsigned(row.number) / unsigned(channels);
        const int channel = int(row.number) - int(n) * channels;
        const int b = out_columns[channel];
        const int u = channel_in_block(out_blocks, b, channel);
        const GateBlock& to = out_blocks[b];
        const GateEntry& e = entries[to.entry];
        const GateBlock& from = x_blocks[e.in];
        const T* const a = x + n * x_width;
        T* const y = out + n * out_width + to.offset + u;
        const int left = to.mul - u;  // channels
        typename Row::Value slope, factor{};
        if (left > 0) {
            const int gate = e.gate < 0 ? from.offset : x_blocks[e.gate].offset + e.gate_offset;
            factor = activated(e, row.load(a + gate + u, 0, left), slope);
        }
        if (e.gate < 0) {
            row.put(y, row.keep(factor, left));
            return;
        }
        for (int m = 0; m < to.dim; ++m)
            row.put(y + m * to.stride,
                    factor * row.load(a + from.offset + m * from.stride + u, 0, left));
    }

    template <class Row>
    MDCG_HD void backward(const Row& row) const {
        using V = typename Row::Value;
        const Long n = unsigned(row.number) / unsigned(channels);
        const int channel = int(row.number) - int(n) * channels;
        const int b = x_columns[channel], u = channel_in_block(x_blocks, b, channel);
        const GateBlock& block = x_blocks[b];
        const T* const a = x + n * x_width;
        T* const d = dx + n * x_width + block.offset + u;
        const int left = block.mul - u;  // channels
        bool written = add != 0;
        const auto add_to = [&](T* to, V p, V q) {
            row.put(to, (written ? row.load(to) : V{}) + p * q);
        };
        for (int i = block.first_use; i < block.last_use && left > 0; ++i) {
            const GateEntry& e = entries[uses[i]];
            const GateBlock& to = out_blocks[e.out];
            const T* const dy = g + n * out_width + to.offset;
            V slope;
            if (e.gate < 0) {
                activated(e, row.load(a + block.offset + u, 0, left), slope);
                add_to(d, row.load(dy + u, 0, left), slope);
                written = true;
                continue;
            }
            if (e.in == b) {
                const int gate = x_blocks[e.gate].offset + e.gate_offset;
                const V factor = activated(e, row.load(a + gate + u, 0, left), slope);
                for (int m = 0; m < block.dim; ++m)
                    add_to(d + m * block.stride, row.load(dy + m * to.stride + u, 0, left), factor);
                written = true;
            }
            // channels u, u + 1, ... of this block gate channels v, v + 1, ... of block e.in
            const int v = u - e.gate_offset, end = to.mul - v;
            if (e.gate != b || v + Row::CHANNELS <= 0 || end <= 0) continue;
            const GateBlock& from = x_blocks[e.in];
            activated(e, row.load(a + block.offset + u, 0, left), slope);
            V dot{};
            for (int m = 0; m < to.dim; ++m)
                dot += row.load(a + from.offset + m * from.stride + v, -v, end) *
                       row.load(dy + m * to.stride + v, -v, end);
            add_to(d, dot, slope);
            written = true;
        }
        for (int m = 0; m < block.dim && !written; ++m) row.put(d + m * block.stride, V{});
    }
};

// Every row function: kernel name, argument struct, member function, and row type on devices.
#define MDCG_ROW_FUNCTIONS(FUNCTION)                                            \
    FUNCTION(type_rows_forward, TypeRows, forward, WarpRow)                     \
    FUNCTION(scale_forward, Scale, forward, WarpRow)                            \
    FUNCTION(normalize_forward, Normalize, forward, WarpRow)                    \
    FUNCTION(normalize_backward, Normalize, backward, WarpRow)                  \
    FUNCTION(product_forward, Product, forward, WarpRow)                        \
    FUNCTION(product_backward, Product, backward, WarpRow)                      \
    FUNCTION(dot_forward, Dot, forward, WarpRow)                                \
    FUNCTION(dot_backward, Dot, backward, WarpRow)                              \
    FUNCTION(modulate_forward, Modulate, forward, WarpRow)                      \
    FUNCTION(modulate_backward, Modulate, backward, WarpRow)                    \
    FUNCTION(layer_norm_forward, LayerNorm, forward, WarpRow)                   \
    FUNCTION(layer_norm_backward, LayerNorm, backward, WarpRow)                 \
    FUNCTION(rms_norm_forward, RmsNorm, forward, WarpRow)                       \
    FUNCTION(rms_norm_backward, RmsNorm, backward, WarpRow)                     \
    FUNCTION(sum_forward, Sum, forward, WarpRow)                                \
    FUNCTION(sum_backward, Sum, backward, WarpRow)                              \
    FUNCTION(energy_forward, Energy, forward, ThreadRow)                        \
    FUNCTION(energy_backward, Energy, backward, WarpRow)                        \
    FUNCTION(reference_weights_forward, ReferenceWeights, forward, ThreadRow)   \
    FUNCTION(reference_weights_backward, ReferenceWeights, backward, ThreadRow) \
    FUNCTION(gate_forward, Gate, forward, ChannelRow)                           \
    FUNCTION(gate_backward, Gate, backward, ChannelRow)

}  // namespace mdcg
