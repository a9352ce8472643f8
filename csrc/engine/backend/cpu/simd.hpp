// Dense kernels, and the table of all kernels that are compiled for several instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/cpu/edge_kernels.hpp"
#include "engine/backend/cpu/pair_kernels.hpp"
#include "engine/backend/cpu/row_kernels.hpp"
#include "engine/backend/cpu/wave_kernels.hpp"

namespace mdcg {

// Parses a name of the manifest; throws std::invalid_argument listing the names.
Activation parse_activation(const std::string& name);

// Storage aligned to 64 bytes.
template <typename T>
class AlignedArray {
public:
    AlignedArray() = default;
    explicit AlignedArray(std::size_t count) { resize(count); }
    // Contents are zero afterwards.
    void resize(std::size_t count);
    T* data() { return data_.get(); }
    const T* data() const { return data_.get(); }
    std::size_t size() const { return size_; }
    T& operator[](std::size_t i) { return data_[i]; }
    const T& operator[](std::size_t i) const { return data_[i]; }

private:
    struct Free {
        void operator()(T* p) const;
    };
    std::unique_ptr<T[], Free> data_;
    std::size_t size_ = 0;
};

// The right-hand matrix [k][n] of products in panels of A items, 64 bytes: [ceil(n / A)][k][A].
// Columns beyond n are zero.
template <typename T>
class PackedMatrix {
public:
    PackedMatrix() = default;
    // Entries are source[row * row_step + column * column_step]; steps are (n, 1) for a row-major
    // source, and (1, k) to transpose it.
    template <typename From>
    PackedMatrix(const From* source, int rows, int columns, std::int64_t row_step,
                 std::int64_t column_step);
    int rows() const { return rows_; }
    int panels() const { return (columns_ * static_cast<int>(sizeof(T)) + 63) / 64; }
    const T* data() const { return data_.data(); }

private:
    int rows_ = 0, columns_ = 0;
    AlignedArray<T> data_;
};

// Polynomials of the components of a node, channel by channel, for the generic contraction.
// Monomial q is the product of the components factor[factor_ptr[q] .. factor_ptr[q + 1]). Its
// entries entry_ptr[q] .. entry_ptr[q + 1] say where it is added. Offsets count items from the
// start of a row.
template <typename T>
struct Monomials {
    std::int64_t count;
    const std::int32_t* factor_ptr;   // [count + 1]
    const std::int32_t* factor;       // [num_factors] offset of the component of x
    const std::int32_t* entry_ptr;    // [count + 1]
    const std::int32_t* coefficient;  // [num_entries] offset of the coefficient's row
    const std::int32_t* out;          // [num_entries] offset of the component of out
    const T* value;                   // [num_entries] numeric factor
    std::int64_t stride;              // channels of a block, padded
};

// Edges that look up some panels of columns in a table; see RadialTable::look_up.
template <typename T>
struct TableLookUp {
    std::int64_t count, panels, table_rows, stride;
    const T* table;            // [panels][table_rows][A]
    const T* steps;            // [panels][table_rows][A], null: differences of rows
    const std::int32_t* knot;  // [count]
    const T* basis;            // [TABLE_STEPS<T>][stride]
    const T* slope;            // [TABLE_STEPS<T>][stride]
    T* values;                 // [count][panels][A]
    T* slopes;                 // [count][panels][A], null: not wanted
};

template <typename T>
struct DenseKernels {
    // c[i][0 .. N) = (or +=) a[i][0 .. k) @ b for i < m, where N is the number of columns rounded
    // up to 64 bytes, to which rows of c are aligned. If rows [m] is not null, row rows[i] of a and
    // c takes the place of row i. Sums run over k in order, so a row does not depend on the others.
    // Panels of b are `panel` items apart.
    void gemm(std::int64_t m, const T* a, std::int64_t lda, const PackedMatrix<T>& b, T* c,
              std::int64_t ldc, const std::int32_t* rows, bool accumulate) const {
        const std::int64_t panel = b.rows() * static_cast<std::int64_t>(64 / sizeof(T));
        gemm_panels(m, b.rows(), b.panels(), a, lda, b.data(), panel, c, ldc, rows, accumulate);
    }
    void (*gemm_panels)(std::int64_t m, std::int64_t k, std::int64_t panels, const T* a,
                        std::int64_t lda, const T* b, std::int64_t panel, T* c, std::int64_t ldc,
                        const std::int32_t* rows, bool accumulate);
    // y = factor * f(x) and, if dy is not null, dy = factor * f'(x); all [count], and y may be x.
    // The caller clears padding, because f(0) is not always zero.
    void (*activate)(Activation kind, std::int64_t count, T factor, const T* x, T* y, T* dy);
    void (*add_scaled)(std::int64_t count, T a, const T* x, T* y);  // y += a * x
    void (*scale)(std::int64_t count, T a, const T* x, T* y);       // y = a * x
    void (*multiply)(std::int64_t count, const T* x, T* y);         // y *= x
    void (*look_up)(const TableLookUp<T>& edges);
    // sum of x * y, in a fixed order
    T (*dot)(std::int64_t count, const T* x, const T* y);
    // For one node: out += sum of coefficient * value * monomial(x); dx += its derivative times g.
    void (*contract)(const Monomials<T>& monomials, const T* x, const T* coefficients, T* out);
    void (*contract_backward)(const Monomials<T>& monomials, const T* x, const T* coefficients,
                              const T* g, T* dx);
};

// The kernels compiled for x86-64-v<level>.
template <int level, typename T>
DenseKernels<T> dense_kernels();

// All kernels of one instruction set.
template <typename T>
struct SimdTable : DenseKernels<T>, EdgeKernels<T>, PairKernels, RowKernels, WaveKernels {
    const char* name;  // "x86-64-v3"
};

// The table for this CPU, chosen at first use.
template <typename T>
const SimdTable<T>& simd();
// All tables that this CPU can run, the best first.
template <typename T>
const std::vector<SimdTable<T>>& simd_tables();

}  // namespace mdcg
