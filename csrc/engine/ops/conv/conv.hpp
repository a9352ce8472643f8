// The convolution: messages from neighbours, weighted by the radial network, summed on receivers.
#pragma once

#include <vector>

#include "engine/backend/cpu/simd.hpp"
#include "engine/edges/radial.hpp"
#include "engine/op.hpp"
#include "engine/ops/conv/conv_problem.hpp"
#include "engine/package/limits.hpp"

namespace mdcg {

struct ConvSpec : OpSpec {
    const Operand& x = fields.has("x") ? input("x", saved_for_backward) : absent;  // or x_table
    // Rows that the radial network adds, or absent.
    const Operand &sender = end("sender"), &receiver = end("receiver");
    const Operand& out = output("out");
    ConvDescription description;
    RadialSpec radial;
    int units = 0;                   // inputs of the last layer of the radial network
    std::int64_t hidden_stride = 0;  // units, padded
    std::string normalization;       // normalization of the harmonics

    explicit ConvSpec(const LayerEntry& given);

    IterationSpace backward_space() const override {
        if (receiver.needs_gradient) return IterationSpace::all_edges;
        return x.needs_gradient || sender.needs_gradient ? IterationSpace::sender_blocks
                                                         : IterationSpace::receivers;
    }
    KernelSize kernel_size() const override {
        const auto terms = static_cast<std::int64_t>(description.terms.size());
        return {terms, limits::BASE_TEXT + limits::SYMBOL_TEXT * terms, fields.text("problem")};
    }
    // Rows of x by type, [types][width of x], if x is absent.
    template <typename T>
    AlignedArray<T> x_table() const;
    // The last layer of the radial network, [weight width][hidden_stride].
    template <typename T>
    AlignedArray<T> last_layer() const;

private:
    const Operand& end(const char* key);
    std::vector<int> powers_of_length() const;
    const Tensor* x_table_ = nullptr;
};

}  // namespace mdcg
