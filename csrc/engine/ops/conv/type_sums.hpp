// Convolutions of scalars that depend on the sender's type alone: edges are summed by type before
// the last layer of the radial network, and a product of matrices does the rest,
//     out[n][l, m][u] = sum over types t and hidden units k of
//                       sums[n][lm][t, k] * x_t[u] W[k, (path, u)] c.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/ops/conv/conv.hpp"
#include "engine/ops/node/linear.hpp"

namespace mdcg {

// Most types of senders for which sums by type are used. With more types, the sums would be larger
// than the weights that they replace.
constexpr std::size_t MAX_SUMMED_TYPES = 16;

// Whether a convolution is of this kind. T is the type that it is evaluated in.
template <typename T>
bool sums_by_type(const ConvSpec& spec);

// The matrices x_t[u] W[k, (path, u)] c of a convolution that sums by type. If the only reader of
// the result is a linear operation that is the same for all types, its matrices are multiplied in,
// and out() is its output.
template <typename T>
class TypeMatrices {
public:
    // `spec` must outlive this object.
    explicit TypeMatrices(const ConvSpec& spec);

    // Takes the tensors of the specifications, which may have changed.
    void load_tensors();
    bool composed() const { return linear_ != nullptr; }
    // The value that is written, and the numbers of its blocks to which a path leads.
    const Operand& out() const { return out_; }
    const std::vector<std::size_t>& blocks() const { return blocks_; }
    bool has_gaps() const { return blocks_.size() < out_.rows.blocks.size(); }
    const Block& block(std::size_t number) const { return out_.rows.blocks[number]; }

    // The matrix of one of these blocks for the types that are present,
    // [types][hidden_stride][channels].
    std::vector<T> matrix(const std::vector<std::int32_t>& present, std::size_t number);

private:
    using ByBlock = std::vector<std::vector<double>>;  // a matrix; empty: no path leads there

    bool has_path_to(const Block& block) const;
    ByBlock of_type(std::int32_t type) const;
    ByBlock composed_with_linear(const ByBlock& matrices) const;

    const ConvSpec& spec_;
    const LinearSpec* linear_;
    const Operand& out_;
    AlignedArray<T> x_table_;
    std::vector<std::size_t> blocks_;
    std::vector<std::vector<double>> weights_;  // weights of the linear operation, by path
    std::map<std::int32_t, ByBlock> by_type_;   // for at most MAX_SUMMED_TYPES types
};

}  // namespace mdcg
