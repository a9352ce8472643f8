// What a convolution of any back end reads from the manifest.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/edges/radial.hpp"
#include "engine/layers/conv_problem.hpp"
#include "engine/registry.hpp"
#include "engine/simd.hpp"

namespace mdcg {

template <typename T>
struct ConvParts {
    ConvDescription<T> description;
    RadialSpec radial;
    int units = 0;                     // inputs of the last layer of the radial network
    std::int64_t hidden_stride = 0;    // units, padded
    Operand x, sender, receiver, out;  // absent: x is a table; no rows added at that end
    AlignedArray<T> x_table;           // [types][x width] where x is absent
    AlignedArray<T> w2_t;              // [weight_width][hidden_stride] the last layer
    std::string normalization;         // of the harmonics
    bool flip = false;                 // harmonics of the opposite vector

    // Throws EngineError that names the field.
    static ConvParts read(const LayerSpec& spec);

    std::vector<Operand*> inputs() {
        std::vector<Operand*> found;
        for (Operand* operand : {&x, &sender, &receiver})
            if (operand->present()) found.push_back(operand);
        return found;
    }
    // Ids of the inputs, whose values backward passes need.
    std::vector<int> kept() const {
        std::vector<int> ids;
        for (const Operand* operand : {&x, &sender, &receiver})
            if (operand->present()) ids.push_back(operand->id);
        return ids;
    }
    std::vector<int> gathered() const {
        std::vector<int> ids;
        for (const Operand* operand : {&x, &sender})
            if (operand->present()) ids.push_back(operand->id);
        return ids;
    }
};

extern template struct ConvParts<float>;
extern template struct ConvParts<double>;

}  // namespace mdcg
