// Weights of a block of edges on CPUs: from the last layer of the radial network, or from a table.
#pragma once

#include "engine/backend/cpu/simd.hpp"
#include "engine/rows.hpp"
#include "kernels/conv/conv_kernel.hpp"

namespace mdcg {

template <typename T>
struct EdgeWeights {
    std::int64_t width = 0;  // columns of weights
    // Exact radial network: w(e) = hidden(e) @ last.
    const T* hidden = nullptr;  // [edges * last.rows()], unused rows zero
    T* d_hidden = nullptr;      // [edges * last.rows()], added to
    const PackedMatrix<T>*last = nullptr, *transposed = nullptr;
    // Or RadialTable::look_up.
    const T *table = nullptr, *steps = nullptr;  // [width / A][table_rows][A]; steps may be null
    std::int64_t table_rows = 0;
    const std::int32_t* knot = nullptr;          // [edges]
    const T *basis = nullptr, *slope = nullptr;  // [TABLE_STEPS<T>][capacity]
    std::int64_t capacity = 0;                   // edges of a block

    void connect(ConvBlock<T>& block) const {
        block.weights = this;
        block.fill_weights = table != nullptr ? &look_up : &multiply;
        block.add_gradient = table != nullptr ? nullptr : &add_gradient;
    }

private:
    static constexpr int A = row_align<T>();

    static void multiply(const EdgeWeights* s, WeightTile tile, T* w, T*) {
        const std::int64_t k = s->last->rows();
        simd<T>().gemm_panels(tile.count, k, tile.panels, s->hidden + tile.first * k, k,
                              s->last->data() + tile.column * k, k * A, w, tile.panels * A, nullptr,
                              false);
    }
    static void add_gradient(const EdgeWeights* s, WeightTile tile, const T* dw) {
        const std::int64_t k = s->last->rows();
        simd<T>().gemm_panels(tile.count, tile.panels * A, k / A, dw, tile.panels * A,
                              s->transposed->data() + tile.column * A, s->width * A,
                              s->d_hidden + tile.first * k, k, nullptr, true);
    }
    static void look_up(const EdgeWeights* s, WeightTile tile, T* w, T* slope) {
        const std::int64_t from = tile.column * s->table_rows;
        simd<T>().look_up({tile.count, tile.panels, s->table_rows, s->capacity, s->table + from,
                           slope != nullptr && s->steps != nullptr ? s->steps + from : nullptr,
                           s->knot + tile.first, s->basis + tile.first, s->slope + tile.first, w,
                           slope});
    }
};

}  // namespace mdcg
