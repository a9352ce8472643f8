// What the manifest says about layers without edges, read and checked.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/layers/node_layer.hpp"

namespace mdcg {

template <typename T>
struct LinearFields {
    struct Path {
        std::size_t in, out;
        bool typed;
        std::vector<T> weight;  // [mul_in][mul_out] or [T][mul_in][mul_out]
    };
    struct Bias {
        std::size_t out;
        bool typed;
        std::vector<T> value;  // [mul_out] or [T][mul_out]
    };
    std::vector<Path> paths;         // by out
    std::vector<std::size_t> by_in;  // numbers of paths
    std::vector<Bias> biases;

    LinearFields(const LayerSpec& spec, const Rows& x, const Rows& out);
};

struct GateFields {
    struct Function {
        Activation kind;
        double factor;
    };
    struct Scalar {
        std::size_t in, out;
        Function f;
    };
    struct Gated {
        std::size_t gate;
        int gate_offset;
        std::size_t in, out;
        Function f;
    };
    std::vector<Scalar> scalars;
    std::vector<Gated> gated;

    // Every block of out is written once.
    GateFields(const LayerSpec& spec, const Rows& x, const Rows& out);
};

// A tensor of one number, or of one for every type.
template <typename N>
std::vector<N> one_or_by_type(const LayerSpec& spec, const char* key);

// The factors of `normalize`: out = x / (density * beta + alpha).
struct NormalizeFields {
    Operand density;
    double alpha, beta;
    NormalizeFields(const LayerSpec& spec, const Operand& x, const Operand& out);
};

// The other factor of `product`.
Operand product_factor(const LayerSpec& spec, const Operand& x, const Operand& out);
// The terms of `sum`.
std::vector<Operand> sum_terms(const LayerSpec& spec, const Operand& out);

struct EnergyFields {
    std::int64_t channel;
    std::vector<double> scale, shift;  // [T]
    EnergyFields(const LayerSpec& spec, const Operand& x);
};

// Rows of out by type, padded: [T][width].
template <typename T>
std::vector<T> type_table(const LayerSpec& spec, const Operand& out);

}  // namespace mdcg
