// Convolutions of scalars that depend on the sender's type alone: edges are summed by type before
// the last layer of the radial network, and a product of matrices does the rest,
//     out[n][l, m][u] = sum over types t and hidden units k of
//                       sums[n][lm][t, k] * x_t[u] W[k, (path, u)] c.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/ops/conv.hpp"

namespace mdcg {

// Types of senders that are summed; with more of them the sums would be larger than what they
// replace.
constexpr std::size_t MAX_SUMMED_TYPES = 16;

// Whether a convolution is one. T is the type that it is evaluated in.
template <typename T>
bool sums_by_type(const ConvSpec& spec);

// x_t[u] W[k, (path, u)] c, by block of the convolution's rows, [types][hidden_stride][channels of
// the block], for the types that are present. Empty for blocks without a path. `x_table` is
// spec.x_table().
template <typename T>
std::vector<std::vector<double>> type_matrices(const ConvSpec& spec,
                                               const std::vector<std::int32_t>& present,
                                               const AlignedArray<T>& x_table);

// Whether a path ends in a block of the convolution's rows.
bool has_path_to(const ConvSpec& spec, const Block& block);

}  // namespace mdcg
