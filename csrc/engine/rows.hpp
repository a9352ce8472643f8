// Layout of node features inside the engine: component-major blocks, padded to 64 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mdcg {

// The number of items in 64 bytes.
template <typename T>
constexpr int row_align() {
    return static_cast<int>(64 / sizeof(T));
}

// mul copies of one irrep: 2l+1 components of `stride` items, of which `mul` are used.
struct Block {
    int mul;
    int l;
    int parity;  // 1 or -1
    int offset;  // items from the start of the row
    int stride;  // mul rounded up to 64 bytes
    int dim() const { return 2 * l + 1; }
};

// The layout of rows, one per node. Padding items are always zero.
struct Rows {
    std::vector<Block> blocks;
    int width = 0;     // items, padding included: a multiple of 64 bytes
    int features = 0;  // items, padding excluded

    // Parses irreps such as "128x0e+128x1o"; throws std::invalid_argument. `align`: row_align().
    static Rows parse(const std::string& irreps, int align);

    // Copies a row stored as [2l+1][mul] per block, and fills the padding with zeros.
    template <typename From, typename To>
    void pad(const From* source, To* row) const {
        for (const Block& b : blocks)
            for (int m = 0; m < b.dim(); ++m) {
                To* target = row + b.offset + static_cast<std::ptrdiff_t>(m) * b.stride;
                for (int u = 0; u < b.mul; ++u) target[u] = static_cast<To>(*source++);
                for (int u = b.mul; u < b.stride; ++u) target[u] = To(0);
            }
    }
    // Writes a padded row in e3nn's layout, [mul][2l+1] per block, and returns its end.
    template <typename T>
    double* unpad(const T* row, double* target) const {
        for (const Block& b : blocks)
            for (int u = 0; u < b.mul; ++u)
                for (int m = 0; m < b.dim(); ++m)
                    *target++ = static_cast<double>(row[b.offset + m * b.stride + u]);
        return target;
    }
    // Pads rows [count][features] to [count][width].
    template <typename T>
    std::vector<T> padded(const std::vector<T>& source, std::int64_t count) const {
        std::vector<T> rows(static_cast<std::size_t>(count * width));
        for (std::int64_t n = 0; n < count; ++n)
            pad(source.data() + n * features, rows.data() + n * width);
        return rows;
    }
};

}  // namespace mdcg
