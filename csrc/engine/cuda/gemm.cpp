#include "engine/cuda/gemm.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/integers.hpp"
#include "kernels/gemm.hpp"

namespace mdcg {

namespace {

// Compute capability of the GPUs that gemm_warpgroup.cuh is written for.
constexpr int WARPGROUPS = 90;

// One kernel of the text.
struct TileShape {
    const char *name, *macro;
    int rows, columns, depth, stages, warp_rows, warp_columns;
    int groups;           // of warps that share a slice: for long sums of few columns
    int blocks;           // per multiprocessor, which limits the registers of a thread
    double efficiency;    // speed of multiplications, relative to the first tile
    double latency;       // us per slice, for a block that is alone on its multiprocessor
    bool images = false;  // b is read as images: see make_images
    int threads() const { return 32 * (rows / warp_rows) * (columns / warp_columns) * groups; }
};

const std::vector<TileShape> PLAIN_TILES{
    {"gemm_large", "GEMM_LARGE", 128, 128, 16, 3, 32, 64, 1, 2, 1.0, 0.8},
    {"gemm_medium", "GEMM_MEDIUM", 64, 64, 16, 4, 32, 32, 1, 4, 0.8, 0.6},
    {"gemm_small", "GEMM_SMALL", 32, 32, 32, 4, 16, 32, 1, 8, 0.5, 0.5},
    {"gemm_deep", "GEMM_DEEP", 64, 64, 32, 3, 32, 32, 2, 2, 0.8, 0.6}};
const std::vector<TileShape> TENSOR_TILES{
    {"gemm_large", "GEMM_LARGE", 128, 64, 32, 3, 32, 32, 1, 2, 1.0, 1.4},
    {"gemm_medium", "GEMM_MEDIUM", 64, 64, 16, 4, 32, 32, 1, 4, 1.0, 0.6},
    {"gemm_small", "GEMM_SMALL", 32, 32, 32, 4, 16, 32, 1, 8, 0.7, 0.5},
    {"gemm_deep", "GEMM_DEEP", 64, 64, 32, 3, 32, 32, 2, 2, 1.0, 0.6}};
constexpr TileShape WARPGROUP_TILE{
    "gemm_warpgroup", "GEMM_WARPGROUP", 64, 64, 32, 2, 16, 64, 1, 4, 1.6, 0.8, true};
const std::vector<TileShape> DOUBLE_TILES{
    {"gemm_large", "GEMM_LARGE", 64, 64, 16, 3, 32, 32, 1, 3, 1.0, 0.8},
    {"gemm_medium", "GEMM_MEDIUM", 32, 64, 16, 4, 16, 32, 1, 4, 0.9, 0.6},
    {"gemm_small", "GEMM_SMALL", 32, 32, 16, 4, 16, 16, 1, 5, 0.5, 0.5},
    {"gemm_deep", "GEMM_DEEP", 64, 64, 32, 2, 32, 32, 2, 2, 0.9, 0.8}};

// With plain arithmetic, for AMD's GPUs, whose blocks have 64 KiB of shared memory.
const std::vector<TileShape> PLAIN_DOUBLE_TILES{
    {"gemm_large", "GEMM_LARGE", 64, 64, 16, 3, 32, 32, 1, 3, 1.0, 0.8},
    {"gemm_medium", "GEMM_MEDIUM", 32, 64, 16, 4, 16, 32, 1, 4, 0.9, 0.6},
    {"gemm_small", "GEMM_SMALL", 32, 32, 16, 4, 16, 16, 1, 5, 0.5, 0.5},
    {"gemm_deep", "GEMM_DEEP", 64, 64, 16, 3, 32, 32, 2, 2, 0.9, 0.8}};

// GEMM_BITS of the text, which says what tensor cores multiply; 0: plain arithmetic.
template <typename T>
int tensor_bits(int capability) {
    if (is_gfx(capability)) return 0;
    if (sizeof(T) == 8) return 53;
    // On these GPUs tf32 is at least seven times as fast as float32.
    for (const int fast : {80, 90, 100, 103})
        if (capability == fast) return 24;
    return 0;
}

// Shared memory of a block, laid out as in kernels/gemm_tiles.cuh.
template <typename T>
int shared_bytes(const TileShape& tile, int bits) {
    constexpr int LANE_ITEMS = 16 / static_cast<int>(sizeof(T));
    const bool plain = bits == 0;
    const int a_stride = tile.depth + (plain ? LANE_ITEMS : tile.depth % 16 == 0 ? 8 : 0);
    const int b_stride = tile.images ? 2 * tile.columns : tile.columns + (plain ? 0 : LANE_ITEMS);
    return tile.stages * (tile.rows * a_stride + tile.depth * b_stride) *
           static_cast<int>(sizeof(T));
}

bool uses_warpgroups(int bits, int capability) { return bits == 24 && capability == WARPGROUPS; }

template <typename T>
const std::vector<TileShape>& tiles_of(int bits, int capability) {
    if (bits == 0 && sizeof(T) == 8) return PLAIN_DOUBLE_TILES;
    static const std::vector<TileShape> with_warpgroups = [] {
        std::vector<TileShape> tiles = TENSOR_TILES;
        tiles.push_back(WARPGROUP_TILE);
        return tiles;
    }();
    if (uses_warpgroups(bits, capability)) return with_warpgroups;
    return bits == 0 ? PLAIN_TILES : bits == 53 ? DOUBLE_TILES : TENSOR_TILES;
}

// "#define GEMM_LARGE Plain, 128, 128, 16, 3, 32, 64, 1" and "#define GEMM_LARGE_BLOCKS 2"
std::string defines(const std::vector<TileShape>& tiles, int bits) {
    std::string text;
    if (bits > 0) text = "#define GEMM_BITS " + std::to_string(bits) + "\n";
    for (const TileShape& t : tiles) {
        const std::string name = std::string("#define ") + t.macro;
        text += name + (t.images ? " Warpgroup" : bits > 0 ? " Tensor" : " Plain");
        for (const int number :
             {t.rows, t.columns, t.depth, t.stages, t.warp_rows, t.warp_columns, t.groups})
            text += ", " + std::to_string(number);
        text += "\n" + name + "_BLOCKS " + std::to_string(t.blocks) + "\n";
    }
    return text;
}

template <typename T>
std::int64_t num_blocks(const GemmProduct<T>& p, const TileShape& tile) {
    return ceil_div(p.rows, tile.rows) * ceil_div(p.columns, tile.columns);
}

// Whether every part begins and ends with a slice of the images.
bool has_whole_slices(const std::vector<CudaPart>& parts) {
    return std::all_of(parts.begin(), parts.end(), [](const CudaPart& part) {
        return part.row % WARPGROUP_TILE.depth == 0 && part.depth % WARPGROUP_TILE.depth == 0;
    });
}

// Cuts a product into pieces whose rows and blocks can be counted in 32 bits.
template <typename T>
void cut(const CudaProduct<T>& p, std::vector<GemmProduct<T>>& all) {
    constexpr std::int64_t MOST = std::int64_t(1) << 30;
    const std::int64_t most = MOST / p.batch;
    for (std::int64_t first = 0; first < p.rows; first += most) {
        const std::int64_t rows = std::min(most, p.rows - first);
        const std::int64_t skipped = p.list != nullptr ? 0 : first;
        GemmProduct<T> one{};
        one.a = p.a + skipped * p.a_width;
        one.b = p.matrix != nullptr ? p.matrix->data(p.number) : p.a;
        one.images =
            p.matrix != nullptr && has_whole_slices(p.parts) ? p.matrix->images() : nullptr;
        one.c = p.c + skipped * p.c_width;
        one.list = p.list != nullptr ? p.list + first : nullptr;
        one.bias = p.bias;
        one.bias_types = p.bias_types != nullptr ? p.bias_types + skipped : nullptr;
        one.a_width = narrow(p.a_width);
        one.c_width = narrow(p.c_width);
        one.c_step = narrow(p.c_step);
        one.batch = p.batch;
        one.columns = narrow(p.columns);
        one.rows = narrow(rows * p.batch);
        one.add = p.add ? 1 : 0;
        one.parts = narrow(static_cast<std::int64_t>(p.parts.size()));
        all.push_back(one);
    }
}

// Returns the tile with which the busiest multiprocessor is estimated to end first. Its time is the
// time of its multiplications or, if there are few, the latency of all slices of the deepest block,
// because blocks wait for memory at the same time. Results must depend neither on the device nor on
// the number of rows; groups of warps change the order of sums, so tiles with groups are chosen by
// depth and columns alone. RATE and latencies were measured on an H200.
template <typename T>
std::size_t best_tile(const GemmProducts<T>& launch, const std::vector<TileShape>& tiles,
                      int multiprocessors) {
    constexpr int LONG = 512, FEW_COLUMNS = 64;
    constexpr double RATE = 190e3;  // multiplications of a multiprocessor in a us
    bool deep = true, images = true;
    for (std::int32_t i = 0; i < launch.count; ++i) {
        const GemmProduct<T>& p = launch.product[i];
        std::int64_t depth = 0;
        for (std::int32_t k = 0; k < p.parts; ++k) depth += launch.part[p.first_part + k].depth;
        deep = deep && depth >= LONG && p.columns <= FEW_COLUMNS;
        images = images && (p.parts == 0 || p.images != nullptr);
    }
    std::size_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t t = 0; t < tiles.size(); ++t) {
        const TileShape& tile = tiles[t];
        if ((tile.groups > 1) != deep || (tile.images && !images)) continue;
        std::int64_t blocks = 0, slices = 0, most = 0;
        for (std::int32_t i = 0; i < launch.count; ++i) {
            const GemmProduct<T>& p = launch.product[i];
            std::int64_t of_block = 0;
            for (std::int32_t k = 0; k < p.parts; ++k)
                of_block += ceil_div(launch.part[p.first_part + k].depth, tile.depth);
            const std::int64_t count = num_blocks(p, tile);
            blocks += count;
            slices += count * of_block;
            most = std::max(most, of_block);
        }
        const double mean =
            static_cast<double>(slices) / static_cast<double>(std::max<std::int64_t>(1, blocks));
        const double busiest = static_cast<double>(ceil_div(blocks, multiprocessors)) * mean *
                               tile.rows * tile.columns * tile.depth / (tile.efficiency * RATE);
        const double time = std::max(busiest, static_cast<double>(most) * tile.latency);
        if (time < least) {
            least = time;
            best = t;
        }
    }
    return best;
}

// Returns the matrix in the form in which gemm_warpgroup.cuh copies it to shared memory: an image
// for each slice of rows and each tile of columns, padded with zeros. An image holds all numbers
// rounded to tf32, then all remainders. Both are in the order in which the instruction assigns rows
// and columns to lanes, so that the columns of a lane are neighbours in c.
std::vector<float> make_images(const float* matrix, std::int64_t rows, std::int64_t columns) {
    constexpr std::int64_t DEPTH = WARPGROUP_TILE.depth, COLUMNS = WARPGROUP_TILE.columns;
    constexpr std::int64_t ITEMS = DEPTH * COLUMNS;
    const std::int64_t across = ceil_div(columns, COLUMNS);
    std::vector<float> images(size(rows / DEPTH * across * 2 * ITEMS), 0.F);
    for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < columns; ++j) {
            const float number = matrix[i * columns + j];
            std::uint32_t bits = 0;
            std::memcpy(&bits, &number, sizeof bits);
            bits = (bits + 0xfffU + (bits >> 13 & 1U)) & 0xffffe000U;
            float large = 0;
            std::memcpy(&large, &bits, sizeof large);
            const std::int64_t k = i % DEPTH, column = j % COLUMNS;
            const std::int64_t four = k / 8 * 2 + k % 2;
            const std::int64_t eight = column / 16 * 2 + column % 4 / 2;
            const std::int64_t in_eight = column % 16 / 4 * 2 + column % 2;
            float* const image = images.data() + (i / DEPTH * across + j / COLUMNS) * 2 * ITEMS;
            float* const place =
                image + (four * (COLUMNS / 8) + eight) * 32 + in_eight * 4 + k % 8 / 2;
            place[0] = large;
            place[ITEMS] = number - large;
        }
    return images;
}

}  // namespace

template <typename T>
CudaMatrix<T>::CudaMatrix(const T* source, int count, std::int64_t step, int rows, int columns,
                          std::int64_t row_step, std::int64_t column_step,
                          const DeviceStream& stream, bool images)
    : rows_(rows), columns_(columns) {
    constexpr std::int64_t ALIGN = 64 / static_cast<std::int64_t>(sizeof(T));
    stride_ = ceil_div(columns, ALIGN) * ALIGN;
    const auto items = size(count * rows * stride_);
    std::vector<T> padded(items, T(0));
    for (std::int64_t n = 0; n < count; ++n)
        for (std::int64_t i = 0; i < rows; ++i)
            for (std::int64_t j = 0; j < columns; ++j)
                padded[size((n * rows + i) * stride_ + j)] =
                    source[n * step + i * row_step + j * column_step];
    numbers_.upload(padded, stream);
    if constexpr (std::is_same_v<T, float>) {
        // Matrices by type have no images: they are large, and few are used at a time.
        if (images && count == 1 && rows > 0 && rows % WARPGROUP_TILE.depth == 0)
            images_.upload(make_images(padded.data(), rows, stride_), stream);
    }
}

template <typename T>
CudaGemm<T>::CudaGemm(CudaKernels& kernels)
    : multiprocessors_(kernels.multiprocessors()),
      bits_(tensor_bits<T>(kernels.compute_capability())),
      capability_(kernels.compute_capability()) {
    const auto ask = [&](int bits) {
        functions_.clear();
        const std::vector<TileShape>& tiles = tiles_of<T>(bits, capability_);
        const std::string text = defines(tiles, bits);
        for (const TileShape& tile : tiles)
            functions_.push_back(kernels.fixed(tile.images ? "gemm_warpgroup.cuh" : "gemm.cuh",
                                               tile.name, text, shared_bytes<T>(tile, bits)));
    };
    // A kernel file of one target also serves later GPUs, which may multiply the other way.
    const bool listed = kernels.device() == NO_DEVICE && !is_gfx(capability_);
    if (listed && sizeof(T) == 4) ask(bits_ == 0 ? 24 : 0);
    ask(bits_);
}

template <typename T>
CudaMatrix<T> CudaGemm<T>::matrix(const T* source, int count, std::int64_t step, int rows,
                                  int columns, std::int64_t row_step, std::int64_t column_step,
                                  const DeviceStream& stream) const {
    const bool images = stream.device() != NO_DEVICE && uses_warpgroups(bits_, capability_);
    return {source, count, step, rows, columns, row_step, column_step, stream, images};
}

template <typename T>
void CudaGemm<T>::run(const DeviceStream& stream,
                      const std::vector<CudaProduct<T>>& products) const {
    GemmProducts<T> launch{};
    std::size_t parts = 0;
    const auto flush = [&] {
        if (launch.count == 0) return;
        const std::vector<TileShape>& tiles = tiles_of<T>(bits_, capability_);
        const std::size_t best = best_tile(launch, tiles, multiprocessors_);
        const TileShape& tile = tiles[best];
        std::int64_t blocks = 0;
        for (std::int32_t i = 0; i < launch.count; ++i) {
            launch.product[i].first_block = narrow(blocks);
            blocks += num_blocks(launch.product[i], tile);
        }
        functions_[best].launch(stream, blocks, tile.threads(), launch,
                                shared_bytes<T>(tile, bits_));
        launch.count = 0;
        parts = 0;
    };
    std::vector<GemmProduct<T>> pieces;
    for (const CudaProduct<T>& p : products) {
        pieces.clear();
        cut(p, pieces);
        for (GemmProduct<T>& piece : pieces) {
            if (launch.count == GEMM_PRODUCTS || parts + p.parts.size() > GEMM_PARTS) flush();
            piece.first_part = narrow(parts);
            for (const CudaPart& part : p.parts)
                launch.part[parts++] = {narrow(part.at), narrow(part.step), part.depth, part.row};
            launch.product[launch.count++] = piece;
        }
    }
    flush();
}

template <typename T>
void CudaGemm<T>::run(const DeviceStream& stream, std::int64_t rows, int batch, const T* a,
                      std::int64_t a_width, std::int64_t a_step, const CudaMatrix<T>& matrix, T* c,
                      std::int64_t c_width, std::int64_t c_step, bool add) const {
    CudaProduct<T> product;
    product.rows = rows;
    product.batch = batch;
    product.a = a;
    product.a_width = a_width;
    product.parts = {{0, a_step, matrix.rows(), 0}};
    product.matrix = &matrix;
    product.columns = matrix.stride();
    product.c = c;
    product.c_width = c_width;
    product.c_step = c_step;
    product.add = add;
    run(stream, {product});
}

template class CudaMatrix<float>;
template class CudaMatrix<double>;
template class CudaGemm<float>;
template class CudaGemm<double>;

}  // namespace mdcg
