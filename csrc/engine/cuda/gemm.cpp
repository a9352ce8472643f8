#include "engine/cuda/gemm.hpp"

#include <algorithm>
#include <limits>

namespace mdcg {

namespace {

// clang-format off: the order counts
const char* const PLAIN =
#include "engine/cuda/text/gemm.cuh"
#include "engine/cuda/text/gemm_plain.cuh"
#include "engine/cuda/text/gemm_kernels.cuh"
    ;
const char* const TENSOR =
#include "engine/cuda/text/gemm.cuh"
#include "engine/cuda/text/gemm_tensor.cuh"
#include "engine/cuda/text/gemm_kernels.cuh"
    ;
// clang-format on

// One kernel of the text.
struct TileShape {
    const char *name, *macro;
    int rows, columns, depth, thread_rows, thread_columns;
    int blocks;         // of a multiprocessor, that registers are kept for
    double efficiency;  // of multiplications, relative to the first
    int threads() const { return rows / thread_rows * (columns / thread_columns); }
};

template <typename T>
constexpr std::array<TileShape, 3> TILES{};
template <>
constexpr std::array<TileShape, 3> TILES<float>{
    {{"gemm_large", "GEMM_LARGE", 128, 128, 16, 8, 8, 2, 1.0},
     {"gemm_medium", "GEMM_MEDIUM", 64, 64, 16, 8, 4, 4, 0.8},
     {"gemm_small", "GEMM_SMALL", 32, 32, 32, 4, 4, 4, 0.5}}};
template <>
constexpr std::array<TileShape, 3> TILES<double>{
    {{"gemm_large", "GEMM_LARGE", 128, 64, 8, 8, 4, 2, 1.0},
     {"gemm_medium", "GEMM_MEDIUM", 64, 64, 8, 4, 4, 2, 0.8},
     {"gemm_small", "GEMM_SMALL", 32, 32, 16, 4, 2, 4, 0.5}}};

// "#define GEMM_LARGE 128, 128, 16, 8, 8" and "#define GEMM_LARGE_BLOCKS 2"
template <typename T>
std::string defines() {
    std::string text;
    for (const TileShape& tile : TILES<T>) {
        const std::string name = std::string("#define ") + tile.macro;
        std::string numbers;
        for (const int number :
             {tile.rows, tile.columns, tile.depth, tile.thread_rows, tile.thread_columns})
            numbers += (numbers.empty() ? " " : ", ") + std::to_string(number);
        text += name + numbers + "\n" + name + "_BLOCKS " + std::to_string(tile.blocks) + "\n";
    }
    return text;
}

// As in the text.
template <typename T>
struct Product {
    const T *a, *b;
    T* c;
    const std::int32_t* list;
    std::int32_t a_width, c_width, a_step, c_step, batch, depth, columns, rows, first_block, add;
};
constexpr std::int32_t MAX_PRODUCTS = 16;
template <typename T>
struct Products {
    Product<T> product[MAX_PRODUCTS];
    std::int32_t count;
};

std::int64_t quotient(std::int64_t n, std::int64_t d) { return (n + d - 1) / d; }

template <typename T>
std::int64_t num_blocks(const Product<T>& p, const TileShape& tile) {
    return quotient(p.rows, tile.rows) * quotient(p.columns, tile.columns);
}

// Products of a launch, cut where their rows or blocks would be too many for 32 bits.
template <typename T>
std::vector<Product<T>> cut(const std::vector<CudaProduct<T>>& products) {
    constexpr std::int64_t MOST = std::int64_t(1) << 30;
    std::vector<Product<T>> all;
    for (const CudaProduct<T>& p : products) {
        const std::int64_t most = MOST / p.batch;
        for (std::int64_t first = 0; first < p.rows; first += most) {
            const std::int64_t rows = std::min(most, p.rows - first);
            const std::int64_t skipped = p.list != nullptr ? 0 : first;
            const auto small = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
            all.push_back({p.a + skipped * p.a_width, p.matrix->data(p.number),
                           p.c + skipped * p.c_width, p.list != nullptr ? p.list + first : nullptr,
                           small(p.a_width), small(p.c_width), small(p.a_step), small(p.c_step),
                           p.batch, p.matrix->rows(), small(p.matrix->stride()),
                           small(rows * p.batch), 0, p.add ? 1 : 0});
        }
    }
    return all;
}

// Number of multiprocessors: a choice of tiles depends on it, results do not.
int count_multiprocessors(int device) {
    if (device == NO_DEVICE) return 1;
    constexpr int MULTIPROCESSORS = 16;  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    const CudaDriver& driver = CudaDriver::get();
    int handle = 0, count = 0;
    driver.check(driver.symbol<int (*)(int*, int)>("cuDeviceGet")(&handle, device), "cuDeviceGet");
    driver.check(driver.symbol<int (*)(int*, int, int)>("cuDeviceGetAttribute")(
                     &count, MULTIPROCESSORS, handle),
                 "cuDeviceGetAttribute");
    return std::max(count, 1);
}

}  // namespace

template <typename T>
CudaMatrix<T>::CudaMatrix(const T* source, int count, std::int64_t step, int rows, int columns,
                          std::int64_t row_step, std::int64_t column_step, const CudaStream& stream)
    : rows_(rows), columns_(columns) {
    constexpr std::int64_t ALIGN = 64 / static_cast<std::int64_t>(sizeof(T));
    stride_ = quotient(columns, ALIGN) * ALIGN;
    const auto items = static_cast<std::size_t>(count * rows * stride_);
    std::vector<T> padded(items, T(0));
    for (std::int64_t n = 0; n < count; ++n)
        for (std::int64_t i = 0; i < rows; ++i)
            for (std::int64_t j = 0; j < columns; ++j)
                padded[static_cast<std::size_t>((n * rows + i) * stride_ + j)] =
                    source[n * step + i * row_step + j * column_step];
    memory_ = std::make_shared<CudaMemory>(stream.device());
    memory_->reserve(items * sizeof(T));
    memory_->upload(padded.data(), items * sizeof(T), stream);
    stream.synchronize();
}

template <typename T>
CudaGemm<T>::CudaGemm(CudaKernels& kernels, CudaArithmetic arithmetic)
    : multiprocessors_(count_multiprocessors(kernels.device())) {
    const std::string tiles = defines<T>();
    const char* const text = arithmetic == CudaArithmetic::plain ? PLAIN : TENSOR;
    for (std::size_t i = 0; i < NUM_TILES; ++i)
        functions_[i] = kernels.fixed(text, TILES<T>[i].name, tiles);
}

template <typename T>
void CudaGemm<T>::run(const CudaStream& stream, const std::vector<CudaProduct<T>>& products) const {
    const std::vector<Product<T>> all = cut(products);
    for (std::size_t begin = 0; begin < all.size(); begin += MAX_PRODUCTS) {
        const std::size_t end = std::min(all.size(), begin + MAX_PRODUCTS);
        // the tile with which the busiest multiprocessor has least to do
        std::size_t best = 0;
        double least = std::numeric_limits<double>::infinity();
        for (std::size_t t = 0; t < NUM_TILES; ++t) {
            const TileShape& tile = TILES<T>[t];
            std::int64_t blocks = 0;
            for (std::size_t i = begin; i < end; ++i) blocks += num_blocks(all[i], tile);
            const double work = static_cast<double>(quotient(blocks, multiprocessors_)) *
                                tile.rows * tile.columns / tile.efficiency;
            if (work < least) {
                least = work;
                best = t;
            }
        }
        Products<T> arguments{};
        std::int64_t blocks = 0;
        for (std::size_t i = begin; i < end; ++i) {
            Product<T>& p = arguments.product[arguments.count++];
            p = all[i];
            p.first_block = static_cast<std::int32_t>(blocks);
            blocks += num_blocks(p, TILES<T>[best]);
        }
        functions_[best].launch(stream, blocks, TILES<T>[best].threads(), arguments);
    }
}

template <typename T>
void CudaGemm<T>::run(const CudaStream& stream, std::int64_t rows, int batch, const T* a,
                      std::int64_t a_width, std::int64_t a_step, const CudaMatrix<T>& matrix, T* c,
                      std::int64_t c_width, std::int64_t c_step, bool add) const {
    run(stream, {{rows, nullptr, batch, a, a_width, a_step, &matrix, 0, c, c_width, c_step, add}});
}

template <typename T>
void CudaGemm<T>::run(const CudaStream& stream, const std::vector<CudaGroup>& groups,
                      const std::int32_t* list, int batch, const T* a, std::int64_t a_width,
                      std::int64_t a_step, const CudaMatrix<T>& matrices, T* c,
                      std::int64_t c_width, std::int64_t c_step, bool add) const {
    std::vector<CudaProduct<T>> products;
    for (const CudaGroup& g : groups)
        products.push_back({g.last - g.first, list + g.first, batch, a, a_width, a_step, &matrices,
                            g.number, c, c_width, c_step, add});
    run(stream, products);
}

template class CudaMatrix<float>;
template class CudaMatrix<double>;
template class CudaGemm<float>;
template class CudaGemm<double>;

}  // namespace mdcg
