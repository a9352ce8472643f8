// Linear operation: every block of out is a sum of constants and of blocks of x times matrices.
// Both may depend on the node's type.
#pragma once

#include "engine/op.hpp"

namespace mdcg {

struct LinearSpec : OpSpec {
    struct Path {
        std::size_t in, out;
        bool typed;
        const Tensor* weight;  // [mul_in][mul_out] or [T][mul_in][mul_out]
    };
    struct Bias {
        std::size_t out;
        bool typed;
        const Tensor* value;  // [mul_out] or [T][mul_out]
    };

    const Operand& x = input("x");
    const Operand& out = output("out");
    std::vector<Path> paths;         // sorted by out
    std::vector<std::size_t> by_in;  // numbers of paths, sorted by in
    std::vector<Bias> biases;

    explicit LinearSpec(const LayerEntry& given);
};

}  // namespace mdcg
