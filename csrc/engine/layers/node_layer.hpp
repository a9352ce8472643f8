// What layers without edges share.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "engine/layer.hpp"
#include "engine/registry.hpp"
#include "engine/simd.hpp"

namespace mdcg {

// "64x1o", for errors.
inline std::string block_text(const Block& block) {
    return std::to_string(block.mul) + "x" + std::to_string(block.l) +
           (block.parity > 0 ? "e" : "o");
}

inline bool same_irreps(const Rows& a, const Rows& b) {
    if (a.blocks.size() != b.blocks.size()) return false;
    for (std::size_t i = 0; i < a.blocks.size(); ++i)
        if (a.blocks[i].mul != b.blocks[i].mul || a.blocks[i].l != b.blocks[i].l ||
            a.blocks[i].parity != b.blocks[i].parity)
            return false;
    return true;
}

inline void expect_same_irreps(const Fields& fields, const Operand& x, const Operand& out) {
    if (!same_irreps(x.rows, out.rows))
        fields.fail("x and out have different irreps, expected the same");
}

// The number of a block of an operand, checked.
inline std::size_t block_index(const Fields& fields, const char* key, const Rows& rows) {
    return static_cast<std::size_t>(
        fields.integer(key, 0, static_cast<std::int64_t>(rows.blocks.size()) - 1));
}

// One operand in, one out.
template <typename T>
class UnaryLayer : public Layer<T> {
public:
    explicit UnaryLayer(const LayerSpec& spec) : x_(spec.operand("x")), out_(spec.operand("out")) {}
    std::vector<Operand*> inputs() override { return {&x_}; }
    std::vector<Operand*> outputs() override { return {&out_}; }

protected:
    const T* x(const Worker<T>& worker, std::int64_t n) const {
        return worker.value(x_) + n * x_.rows.width;
    }
    T* out(const Worker<T>& worker, std::int64_t n) const {
        return worker.value(out_) + n * out_.rows.width;
    }
    // Gradient rows of x, zero where nothing has been added yet.
    T* dx(const Worker<T>& worker, std::int64_t n) const {
        T* row = worker.gradient(x_) + n * x_.rows.width;
        if (!x_.accumulate) std::fill(row, row + x_.rows.width, T(0));
        return row;
    }
    const T* dout(const Worker<T>& worker, std::int64_t n) const {
        return worker.gradient(out_) + n * out_.rows.width;
    }

    Operand x_, out_;
};

}  // namespace mdcg
