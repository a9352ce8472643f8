R"CUDA(
// A block computes a tile of c, with fused multiply-adds. It walks down the shared dimension in
// slices of DEPTH, which are copied to shared memory, a's transposed; while a slice is multiplied
// the next one is on its way, a's in registers.

template <int ROWS_, int COLUMNS_, int DEPTH_, int THREAD_ROWS_, int THREAD_COLUMNS_>
struct Tile {
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, DEPTH = DEPTH_;
    static constexpr int THREAD_ROWS = THREAD_ROWS_, THREAD_COLUMNS = THREAD_COLUMNS_;
    static constexpr int ACROSS = COLUMNS / THREAD_COLUMNS, DOWN = ROWS / THREAD_ROWS;
    static constexpr int THREADS = ACROSS * DOWN;
    static constexpr int A_STRIDE = ROWS + LANE_ITEMS;  // fewer bank conflicts when transposing
    static constexpr int SLICE_PACKS = DEPTH / LANE_ITEMS, ROW_PACKS = COLUMNS / LANE_ITEMS;
    static constexpr int A_ITEMS = DEPTH * A_STRIDE, B_ITEMS = DEPTH * COLUMNS;  // of a slice
    static constexpr int A_LOADS = ROWS * SLICE_PACKS / THREADS;
    static constexpr int B_LOADS = DEPTH * ROW_PACKS / THREADS;
    static_assert(ROWS * SLICE_PACKS % THREADS == 0 && DEPTH * ROW_PACKS % THREADS == 0, "loads");
    static_assert(THREADS % ROW_PACKS == 0, "a thread copies one column of b");
    static_assert(ACROSS % 8 == 0 && DOWN % 4 == 0 && THREADS % 32 == 0, "warps of 8 x 4 threads");
    static_assert(THREAD_ROWS % LANE_ITEMS == 0 && THREAD_COLUMNS % LANE_ITEMS == 0, "packs");
};

// A tile's slices of a and b, on their way to shared memory.
template <typename S>
struct Slices {
    const Product& p;
    const T* a_row[S::A_LOADS];  // null: no such row
    const T* b_first;
    int b_row;    // in a slice; the next ones are THREADS / ROW_PACKS apart
    bool column;  // is there one
    Pack a[S::A_LOADS];

    INLINE Slices(const Product& product, int first_row, int first_column) : p(product) {
#pragma unroll
        for (int i = 0; i < S::A_LOADS; ++i) {
            const int row = first_row + place(i) / S::SLICE_PACKS;
            a_row[i] = row < p.rows ? p.a + row_start(p, row, p.a_width, p.a_step) : nullptr;
        }
        const int at = first_column + int(threadIdx.x) % S::ROW_PACKS * LANE_ITEMS;
        b_row = threadIdx.x / S::ROW_PACKS;
        column = at < p.columns;
        b_first = p.b + (column ? at : 0);
    }
    INLINE void load_a(int from) {
#pragma unroll
        for (int i = 0; i < S::A_LOADS; ++i) {
            const int k = from + place(i) % S::SLICE_PACKS * LANE_ITEMS;
            a[i] = Pack{};
            if (a_row[i] != nullptr && k < p.depth) a[i] = *(const Pack*)(a_row[i] + k);
            if (k + LANE_ITEMS > p.depth) {
#pragma unroll
                for (int v = 0; v < LANE_ITEMS; ++v)
                    if (k + v >= p.depth) a[i].v[v] = T(0);
            }
        }
    }
    INLINE void store_a(T* slice) const {
#pragma unroll
        for (int i = 0; i < S::A_LOADS; ++i) {
            const int row = place(i) / S::SLICE_PACKS;
            const int k = place(i) % S::SLICE_PACKS * LANE_ITEMS;
#pragma unroll
            for (int v = 0; v < LANE_ITEMS; ++v) slice[(k + v) * S::A_STRIDE + row] = a[i].v[v];
        }
    }
    INLINE void copy_b(T* slice, int from) const {
#pragma unroll
        for (int i = 0; i < S::B_LOADS; ++i) {
            const int k = from + b_row + i * (S::THREADS / S::ROW_PACKS);
            const bool there = column && k < p.depth;
            start_copy(slice + place(i) * LANE_ITEMS,
                       b_first + (there ? Long(k) * p.columns : Long(0)), there ? 16 : 0);
        }
    }

    static INLINE int place(int i) { return threadIdx.x + i * S::THREADS; }
};

// Multiplies slices with fused multiply-adds: a thread's items of c are packs, ACROSS and DOWN
// packs apart, of 8 x 4 threads in a warp.
template <typename S>
struct Multiplier {
    T sum[S::THREAD_ROWS][S::THREAD_COLUMNS];
    int x, y;

    INLINE Multiplier() {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        x = warp % (S::ACROSS / 8) * 8 + lane % 8;
        y = warp / (S::ACROSS / 8) * 4 + lane / 8;
#pragma unroll
        for (int i = 0; i < S::THREAD_ROWS; ++i)
#pragma unroll
            for (int j = 0; j < S::THREAD_COLUMNS; ++j) sum[i][j] = T(0);
    }
    INLINE int row(int i) const {
        return (i / LANE_ITEMS * S::DOWN + y) * LANE_ITEMS + i % LANE_ITEMS;
    }
    INLINE int column(int j) const {
        return (j / LANE_ITEMS * S::ACROSS + x) * LANE_ITEMS + j % LANE_ITEMS;
    }
    INLINE void multiply(const T* a_slice, const T* b_slice) {
#pragma unroll
        for (int k = 0; k < S::DEPTH; ++k) {
            Pack a[S::THREAD_ROWS / LANE_ITEMS], b[S::THREAD_COLUMNS / LANE_ITEMS];
#pragma unroll
            for (int i = 0; i < S::THREAD_ROWS / LANE_ITEMS; ++i)
                a[i] = *(const Pack*)(a_slice + k * S::A_STRIDE + row(i * LANE_ITEMS));
#pragma unroll
            for (int j = 0; j < S::THREAD_COLUMNS / LANE_ITEMS; ++j)
                b[j] = *(const Pack*)(b_slice + k * S::COLUMNS + column(j * LANE_ITEMS));
#pragma unroll
            for (int i = 0; i < S::THREAD_ROWS; ++i)
#pragma unroll
                for (int j = 0; j < S::THREAD_COLUMNS; ++j)
                    sum[i][j] += a[i / LANE_ITEMS].v[i % LANE_ITEMS] *
                                 b[j / LANE_ITEMS].v[j % LANE_ITEMS];
        }
    }
    INLINE void write(const Product& p, int first_row, int first_column) const {
#pragma unroll
        for (int i = 0; i < S::THREAD_ROWS; ++i) {
            const int r = first_row + row(i);
            if (r >= p.rows) continue;
            T* const c_row = p.c + row_start(p, r, p.c_width, p.c_step);
#pragma unroll
            for (int j = 0; j < S::THREAD_COLUMNS; j += LANE_ITEMS) {
                const int at = first_column + column(j);
                if (at >= p.columns) continue;
                Pack out;
                if (p.add) out = *(const Pack*)(c_row + at);
#pragma unroll
                for (int v = 0; v < LANE_ITEMS; ++v)
                    out.v[v] = p.add ? out.v[v] + sum[i][j + v] : sum[i][j + v];
                *(Pack*)(c_row + at) = out;
            }
        }
    }
};

template <typename S>
INLINE void multiply_tile(const Products& all, T* a_slices, T* b_slices) {
    const Product& p = product_of_block(all);
    int first_row, first_column;
    find_tile<S>(p, first_row, first_column);
    Slices<S> slices(p, first_row, first_column);
    Multiplier<S> multiplier;
    slices.copy_b(b_slices, 0);
    slices.load_a(0);
    slices.store_a(a_slices);
    end_copies();
    __syncthreads();
    int now = 0;
    for (int k = 0; k < p.depth; k += S::DEPTH) {
        const bool more = k + S::DEPTH < p.depth;
        if (more) {
            slices.copy_b(b_slices + (now ^ 1) * S::B_ITEMS, k + S::DEPTH);
            slices.load_a(k + S::DEPTH);
        }
        multiplier.multiply(a_slices + now * S::A_ITEMS, b_slices + now * S::B_ITEMS);
        now ^= 1;
        if (more) slices.store_a(a_slices + now * S::A_ITEMS);
        end_copies();
        __syncthreads();
    }
    multiplier.write(p, first_row, first_column);
}
)CUDA"
