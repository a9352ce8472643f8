// Small kernels, compiled for several instruction sets; the table is chosen once, at first use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/cpu/edge_kernels.hpp"
#include "engine/backend/cpu/pair_kernels.hpp"
#include "engine/backend/cpu/row_kernels.hpp"

namespace mdcg {

// By name as the manifest has it; throws std::invalid_argument listing the names.
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

// Right-hand matrix of products, [k][n] in panels of 64 bytes: [ceil(n / A)][k][A], columns beyond
// n zero.
template <typename T>
class PackedMatrix {
public:
    PackedMatrix() = default;
    // source[row * row_step + column * column_step]: pass (n, 1) for row-major, (1, k) to
    // transpose.
    template <typename From>
    PackedMatrix(const From* source, int rows, int columns, std::int64_t row_step,
                 std::int64_t column_step, double factor = 1.0);
    int rows() const { return rows_; }
    int columns() const { return columns_; }  // not padded
    int panels() const { return (columns_ * static_cast<int>(sizeof(T)) + 63) / 64; }
    const T* data() const { return data_.data(); }

private:
    int rows_ = 0, columns_ = 0;
    AlignedArray<T> data_;
};

// Polynomials of a node's components, channel by channel, as lists; what the generic contraction
// runs. Offsets count items from the start of a row.
template <typename T>
struct Monomials {
    std::int64_t count;
    const std::int32_t* factor_ptr;   // [count + 1]
    const std::int32_t* factor;       // offsets of the components that are multiplied
    const std::int32_t* entry_ptr;    // [count + 1] where a monomial occurs:
    const std::int32_t* coefficient;  // offset of the coefficient's row,
    const std::int32_t* out;          // offset of the component of out,
    const T* value;                   // and the number in front
    std::int64_t stride;              // channels of a block, padded
};

// Splines at places of a table [panels][table_rows][A]. Row i of out is
//     sum over j < num_steps of factors[j][i] * (table[knot[i] + j + 1] - table[knot[i] + j]),
// plus table[knot[i]] where from_table is set.
template <typename T>
struct SplineRows {
    std::int64_t count, panels, table_rows;
    const T *table, *steps;    // steps: these differences; null: they are computed
    const std::int32_t* knot;  // [count]
    const T* factors;          // [num_steps][stride]
    std::int64_t num_steps, stride;
    bool from_table;
    T* out;  // [count][panels][A]
};

template <typename T>
struct DenseKernels {
    // c[i][0 .. N) = (or +=) a[i][0 .. k) @ b for i < m, N = columns rounded up to 64 bytes; rows
    // of c aligned to 64 bytes. Row i stands at rows[i] * ld where rows is given, else i * ld. Sums
    // run over k in order, whatever m and rows are: a row does not depend on the others.
    void gemm(std::int64_t m, const T* a, std::int64_t lda, const PackedMatrix<T>& b, T* c,
              std::int64_t ldc, const std::int32_t* rows, bool accumulate) const {
        gemm_panels(m, b.rows(), b.panels(), a, lda, b.data(), c, ldc, rows, accumulate);
    }
    void (*gemm_panels)(std::int64_t m, std::int64_t k, std::int64_t panels, const T* a,
                        std::int64_t lda, const T* b, T* c, std::int64_t ldc,
                        const std::int32_t* rows, bool accumulate);
    // y = factor * f(x) and, where dy is given, dy = factor * f'(x), of count items; y may be x.
    // sigmoid(0) and others are not zero: the caller clears padding.
    void (*activate)(Activation kind, std::int64_t count, T factor, const T* x, T* y, T* dy);
    // y += a * x; y = a * x; y *= x.
    void (*add_scaled)(std::int64_t count, T a, const T* x, T* y);
    void (*scale)(std::int64_t count, T a, const T* x, T* y);
    void (*multiply)(std::int64_t count, const T* x, T* y);
    void (*interpolate)(const SplineRows<T>& rows);
    // sum of x * y, in a fixed order
    T (*dot)(std::int64_t count, const T* x, const T* y);
    // One node. out += sum of coefficient * value * monomial(x); dx += its derivative times g.
    void (*contract)(const Monomials<T>& monomials, const T* x, const T* coefficients, T* out);
    void (*contract_backward)(const Monomials<T>& monomials, const T* x, const T* coefficients,
                              const T* g, T* dx);
};

// Compiled for x86-64-v<level>.
template <int level, typename T>
DenseKernels<T> dense_kernels();

// All kernels of one instruction set.
template <typename T>
struct SimdTable : DenseKernels<T>, EdgeKernels<T>, PairKernels, RowKernels {
    const char* name;  // "x86-64-v3"
};

// The table for this CPU.
template <typename T>
const SimdTable<T>& simd();
// All tables that this CPU can run, the best first.
template <typename T>
const std::vector<SimdTable<T>>& simd_tables();

}  // namespace mdcg
