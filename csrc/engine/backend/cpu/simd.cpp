#include "engine/backend/cpu/simd.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "core/cpu.hpp"
#include "core/integers.hpp"

namespace mdcg {

Activation parse_activation(const std::string& name) {
    static const char* const names[] = {"none", "silu", "tanh", "sigmoid", "relu", "abs", "ssp"};
    for (int i = 0; i < 7; ++i)
        if (name == names[i]) return static_cast<Activation>(i);
    throw std::invalid_argument("activation \"" + name +
                                "\", expected none, silu, tanh, sigmoid, relu, abs or ssp");
}

template <typename T>
void AlignedArray<T>::Free::operator()(T* p) const {
    std::free(p);
}

template <typename T>
void AlignedArray<T>::resize(std::size_t count) {
    data_.reset();
    size_ = 0;
    if (count == 0) return;
    const std::size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
    if (!data_) throw std::bad_alloc();
    std::memset(static_cast<void*>(data_.get()), 0, bytes);
    size_ = count;
}

template <typename T>
template <typename From>
PackedMatrix<T>::PackedMatrix(const From* source, int rows, int columns, std::int64_t row_step,
                              std::int64_t column_step)
    : rows_(rows), columns_(columns) {
    constexpr int A = static_cast<int>(64 / sizeof(T));
    data_.resize(size(panels()) * size(rows) * A);
    for (int j = 0; j < columns; ++j)
        for (int i = 0; i < rows; ++i)
            data_[(size(j / A) * size(rows) + size(i)) * A + size(j % A)] =
                static_cast<T>(source[i * row_step + j * column_step]);
}

template <typename T>
const std::vector<SimdTable<T>>& simd_tables() {
    static const std::vector<SimdTable<T>> tables = [] {
        std::vector<SimdTable<T>> found;
#if defined(__x86_64__)
        const std::string best = instruction_set_level();
        if (best == "x86-64-v4")
            found.push_back({dense_kernels<4, T>(), edge_kernels<4, T>(), pair_kernels<4>(),
                             row_kernels<4, T>(), wave_kernels<4>(), "x86-64-v4"});
        if (best == "x86-64-v4" || best == "x86-64-v3")
            found.push_back({dense_kernels<3, T>(), edge_kernels<3, T>(), pair_kernels<3>(),
                             row_kernels<3, T>(), wave_kernels<3>(), "x86-64-v3"});
        found.push_back({dense_kernels<2, T>(), edge_kernels<2, T>(), pair_kernels<2>(),
                         row_kernels<2, T>(), wave_kernels<2>(), "x86-64"});
#else
        found.push_back({dense_kernels<2, T>(), edge_kernels<2, T>(), pair_kernels<2>(),
                         row_kernels<2, T>(), wave_kernels<2>(), "generic"});
#endif
        return found;
    }();
    return tables;
}

template <typename T>
const SimdTable<T>& simd() {
    static const SimdTable<T>& best = simd_tables<T>().front();
    return best;
}

template const std::vector<SimdTable<float>>& simd_tables<float>();
template const std::vector<SimdTable<double>>& simd_tables<double>();
template const SimdTable<float>& simd<float>();
template const SimdTable<double>& simd<double>();
template class AlignedArray<float>;
template class AlignedArray<double>;
template class AlignedArray<char>;
template class AlignedArray<std::int32_t>;
template class PackedMatrix<float>;
template class PackedMatrix<double>;
template PackedMatrix<float>::PackedMatrix(const float*, int, int, std::int64_t, std::int64_t);
template PackedMatrix<float>::PackedMatrix(const double*, int, int, std::int64_t, std::int64_t);
template PackedMatrix<double>::PackedMatrix(const float*, int, int, std::int64_t, std::int64_t);
template PackedMatrix<double>::PackedMatrix(const double*, int, int, std::int64_t, std::int64_t);

}  // namespace mdcg
