// Products of rows and small matrices, in T.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cuda/kernels.hpp"

namespace mdcg {

// A matrix on the device, [k][n] with rows of `stride` items: n rounded up to 64 bytes, as rows of
// nodes are; zeros.
template <typename T>
class CudaMatrix {
public:
    CudaMatrix() = default;
    // source[row * row_step + column * column_step] on the host, several of the same shape one
    // after the other, `step` items apart.
    CudaMatrix(const T* source, int count, std::int64_t step, int rows, int columns,
               std::int64_t row_step, std::int64_t column_step, const CudaStream& stream);
    int rows() const { return rows_; }
    int columns() const { return columns_; }
    std::int64_t stride() const { return stride_; }
    const T* data(int number = 0) const {
        return memory_->template as<T>() + number * rows_ * stride_;
    }

private:
    int rows_ = 0, columns_ = 0;
    std::int64_t stride_ = 0;
    std::shared_ptr<CudaMemory> memory_;
};

// Rows [first, last) of a list of rows, multiplied by matrix `number`.
struct CudaGroup {
    std::int32_t number, first, last;
};

// For all i < rows, m < batch: c[i * c_width + m * c_step + j] (+)=
//     sum_k a[i * a_width + m * a_step + k] * matrix[k][j], all columns j < matrix.stride();
// with a list, list[i] stands for i. Widths and steps count items; starts, widths and steps are
// multiples of 16 bytes. Sums run over k in order, and do not depend on how many rows there are.
template <typename T>
struct CudaProduct {
    std::int64_t rows = 0;
    const std::int32_t* list = nullptr;
    int batch = 1;
    const T* a = nullptr;
    std::int64_t a_width = 0, a_step = 0;
    const CudaMatrix<T>* matrix = nullptr;
    int number = 0;  // of the matrix
    T* c = nullptr;
    std::int64_t c_width = 0, c_step = 0;
    bool add = false;
};

// On tensor cores, float is split in two numbers of 11 bits: errors stay those of float.
enum class CudaArithmetic { plain, tensor };

template <typename T>
class CudaGemm {
public:
    CudaGemm() = default;
    explicit CudaGemm(CudaKernels& kernels, CudaArithmetic arithmetic = CudaArithmetic::plain);

    // In as few launches as there can be; no product reads or writes what another one writes.
    void run(const CudaStream& stream, const std::vector<CudaProduct<T>>& products) const;

    // One product.
    void run(const CudaStream& stream, std::int64_t rows, int batch, const T* a,
             std::int64_t a_width, std::int64_t a_step, const CudaMatrix<T>& matrix, T* c,
             std::int64_t c_width, std::int64_t c_step, bool add) const;

    // The same for rows list[g.first .. g.last) of both, of every group, with its matrix.
    void run(const CudaStream& stream, const std::vector<CudaGroup>& groups,
             const std::int32_t* list, int batch, const T* a, std::int64_t a_width,
             std::int64_t a_step, const CudaMatrix<T>& matrices, T* c, std::int64_t c_width,
             std::int64_t c_step, bool add) const;

private:
    static constexpr std::size_t NUM_TILES = 3;
    std::array<CudaFunction, NUM_TILES> functions_;
    int multiprocessors_ = 1;
};

extern template class CudaMatrix<float>;
extern template class CudaMatrix<double>;
extern template class CudaGemm<float>;
extern template class CudaGemm<double>;

}  // namespace mdcg
