// Products of rows and small matrices, in T.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cuda/kernels.hpp"

namespace mdcg {

// A matrix on the device, [k][n]. Rows have `stride` items: n rounded up to 64 bytes, padded with
// zeros, like rows of nodes.
template <typename T>
class CudaMatrix {
public:
    CudaMatrix() = default;
    // See CudaGemm::matrix. `images`: also makes the images that gemm_warpgroup.cuh reads.
    CudaMatrix(const T* source, int count, std::int64_t step, int rows, int columns,
               std::int64_t row_step, std::int64_t column_step, const DeviceStream& stream,
               bool images);
    int rows() const { return rows_; }
    int columns() const { return columns_; }
    std::int64_t stride() const { return stride_; }
    const T* data(int number = 0) const { return numbers_.data() + number * rows_ * stride_; }
    // The matrix in the form that kernels/gemm_warpgroup.cuh reads, or null.
    const T* images() const { return images_.data(); }

private:
    int rows_ = 0, columns_ = 0;
    std::int64_t stride_ = 0;
    DeviceArray<T> numbers_, images_;
};

// `depth` columns of a's rows from `at` on, where components are `step` items apart, and `depth`
// rows of the matrix from `row` on.
struct CudaPart {
    std::int64_t at = 0, step = 0;
    int depth = 0, row = 0;
};

// For all i < rows, m < batch: c[i * c_width + m * c_step + j] (+)= bias[j] +
//     sum over parts, k < part.depth:
//         a[i * a_width + part.at + m * part.step + k] * matrix[part.row + k][j]
// for all j < columns, which is the matrix's stride. With a list, list[i] replaces i. Widths and
// steps count items; starts, widths and steps are multiples of 16 bytes. Sums run over k in order
// (but see `groups` in gemm.cpp), and do not depend on the number of rows.
template <typename T>
struct CudaProduct {
    std::int64_t rows = 0;
    const std::int32_t* list = nullptr;
    int batch = 1;
    const T* a = nullptr;
    std::int64_t a_width = 0;
    std::vector<CudaPart> parts;
    const CudaMatrix<T>* matrix = nullptr;  // not needed if there are no parts
    int number = 0;                         // which of the matrices of CudaGemm::matrix
    std::int64_t columns = 0;
    T* c = nullptr;
    std::int64_t c_width = 0, c_step = 0;
    bool add = false;
    const T* bias = nullptr;                   // [columns], or
    const std::int32_t* bias_types = nullptr;  // by type of the row's node [types][columns]
};

template <typename T>
class CudaGemm {
public:
    static constexpr std::size_t MAX_PARTS = 64;  // most parts of a product

    CudaGemm() = default;
    explicit CudaGemm(CudaKernels& kernels);

    // Uploads `count` matrices of one shape, source[row * row_step + column * column_step] on the
    // host, which are `step` items apart.
    CudaMatrix<T> matrix(const T* source, int count, std::int64_t step, int rows, int columns,
                         std::int64_t row_step, std::int64_t column_step,
                         const DeviceStream& stream) const;

    // Runs products in as few launches as possible. No product may use what another one writes.
    void run(const DeviceStream& stream, const std::vector<CudaProduct<T>>& products) const;

    void run(const DeviceStream& stream, std::int64_t rows, int batch, const T* a,
             std::int64_t a_width, std::int64_t a_step, const CudaMatrix<T>& matrix, T* c,
             std::int64_t c_width, std::int64_t c_step, bool add) const;

private:
    std::vector<CudaFunction> functions_;  // by tile
    int multiprocessors_ = 1;
    int bits_ = 0;  // GEMM_BITS
    int capability_ = 0;
};

}  // namespace mdcg
