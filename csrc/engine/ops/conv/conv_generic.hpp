// The convolution kernel that needs no compiler. It computes what generated kernels compute, from
// lists of nonzeros.
#pragma once

#include "engine/backend/cpu/simd.hpp"
#include "engine/ops/conv/conv.hpp"
#include "kernels/conv/conv_kernel.hpp"

namespace mdcg {

template <typename T>
class GenericConv {
public:
    explicit GenericConv(const ConvSpec& spec);

    const ConvInfo& info() const { return info_; }

    // `capacity`: edges of the block, the step of its arrays.
    void forward(const ConvBlock<T>& block, std::int64_t capacity) const;
    void backward(const ConvBlock<T>& block, std::int64_t capacity) const;

private:
    struct Scratch {
        T *weights, *slopes, *d_weights, *coefficients, *d_coefficients;
        std::size_t bytes;
    };
    static constexpr std::int64_t TILE = 16;
    Scratch lay_out(char* start) const;
    WeightTile tile(std::int64_t first, std::int64_t count) const {
        return {first, count, 0, info_.weight_width / row_align<T>()};
    }
    // Weights and coefficients of edges first .. first + TILE.
    void fill(const ConvBlock<T>& block, std::int64_t capacity, std::int64_t first,
              std::int64_t count, bool backward, const Scratch& scratch) const;

    const ConvDescription& description_;
    std::vector<GenericTerm<T>> terms_;
    ConvInfo info_;
};

}  // namespace mdcg
