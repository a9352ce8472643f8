// The convolution kernel that needs no compiler: same blocks, same numbers, from the nonzeros.
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
    const T* w2() const { return w2_.data(); }

    // `capacity`: edges of the block, the step of its arrays. Weights come from block.hidden, or
    // from block.table where it is null.
    void forward(const ConvBlock<T>& block, std::int64_t capacity) const;
    void backward(const ConvBlock<T>& block, std::int64_t capacity) const;

private:
    struct Scratch {
        T *weights, *d_weights, *coefficients, *d_coefficients;
        std::size_t bytes;
    };
    static constexpr std::int64_t TILE = 16;
    Scratch lay_out(char* start) const;
    // Weights and coefficients of edges first .. first + TILE.
    void fill(const ConvBlock<T>& block, std::int64_t capacity, std::int64_t first,
              std::int64_t count, const Scratch& scratch) const;

    const ConvDescription& description_;
    std::vector<GenericTerm<T>> terms_;
    ConvInfo info_;
    PackedMatrix<T> w2_, w2_t_;
};

}  // namespace mdcg
