R"CUDA(
// A block computes a tile of c on tensor cores. In double they multiply as plain arithmetic does.
// In float a number is split in two of 11 bits, whose products are summed in float but for that of
// the lower halves: an error of a few units of the last place.
//
// Slices of both matrices are copied to shared memory as they are; one is multiplied while the
// next one is on its way. A warp's part of the tile is that of 8 x 4 threads.

template <int ROWS_, int COLUMNS_, int DEPTH_, int THREAD_ROWS, int THREAD_COLUMNS>
struct Tile {
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, DEPTH = DEPTH_;
    static constexpr int WARP_ROWS = 4 * THREAD_ROWS, WARP_COLUMNS = 8 * THREAD_COLUMNS;
    static constexpr int ACROSS = COLUMNS / WARP_COLUMNS;  // warps
    static constexpr int THREADS = 32 * ACROSS * (ROWS / WARP_ROWS);
    // lanes (l / 4, l % 4) read different banks
    static constexpr int A_STRIDE = DEPTH + 4, B_STRIDE = COLUMNS + 2 * LANE_ITEMS;
    static constexpr int A_ITEMS = ROWS * A_STRIDE, B_ITEMS = DEPTH * B_STRIDE;  // of a slice
    static constexpr int SLICE_PACKS = DEPTH / LANE_ITEMS, ROW_PACKS = COLUMNS / LANE_ITEMS;
    static constexpr int A_LOADS = ROWS * SLICE_PACKS / THREADS;
    static constexpr int B_LOADS = DEPTH * ROW_PACKS / THREADS;
    static_assert(ROWS * SLICE_PACKS % THREADS == 0 && DEPTH * ROW_PACKS % THREADS == 0, "loads");
    static_assert(THREADS % ROW_PACKS == 0, "a thread copies one column of b");
};

// A warp's sums of products of 16 x 8 and 8 x 8 items.
template <int M, int N>
struct Warp {
    float sum[M / 16][N / 8][4];
    static_assert(M % 16 == 0 && N % 8 == 0, "fragments");

    static INLINE unsigned rounded(float x) {
        unsigned bits;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
        return bits;
    }
    static INLINE void split(float x, unsigned& high, unsigned& low) {
        high = rounded(x);
        low = rounded(x - __uint_as_float(high));
    }
    static INLINE void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
        asm volatile(
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, "
            "%7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
    INLINE void clear() {
#pragma unroll
        for (int i = 0; i < M / 16; ++i)
#pragma unroll
            for (int j = 0; j < N / 8; ++j)
#pragma unroll
                for (int v = 0; v < 4; ++v) sum[i][j][v] = 0;
    }
    // `a` and `b` are at the lane's place: row lane / 4 and column lane % 4 of a, the other way
    // round of b.
    template <int DEPTH, int A_STRIDE, int B_STRIDE>
    INLINE void multiply(const float* a, const float* b) {
#pragma unroll
        for (int k = 0; k < DEPTH; k += 8) {
            unsigned high[M / 16][4], low[M / 16][4];
#pragma unroll
            for (int i = 0; i < M / 16; ++i)
#pragma unroll
                for (int v = 0; v < 4; ++v)
                    split(a[(16 * i + v % 2 * 8) * A_STRIDE + k + v / 2 * 4], high[i][v],
                          low[i][v]);
#pragma unroll
            for (int j = 0; j < N / 8; ++j) {
                unsigned b_high[2], b_low[2];
#pragma unroll
                for (int v = 0; v < 2; ++v)
                    split(b[(k + 4 * v) * B_STRIDE + 8 * j], b_high[v], b_low[v]);
#pragma unroll
                for (int i = 0; i < M / 16; ++i) {
                    multiply(sum[i][j], low[i], b_high);
                    multiply(sum[i][j], high[i], b_low);
                    multiply(sum[i][j], high[i], b_high);
                }
            }
        }
    }
    // Pairs of neighbours: f(row, column, first, second), counted from the lane's place.
    template <typename F>
    INLINE void each(const F& f) const {
#pragma unroll
        for (int i = 0; i < M / 16; ++i)
#pragma unroll
            for (int v = 0; v < 4; v += 2)
#pragma unroll
                for (int j = 0; j < N / 8; ++j)
                    f(16 * i + 4 * v, 8 * j, sum[i][j][v], sum[i][j][v + 1]);
    }
};

// The same of 8 x 4 and 4 x 8 items in double.
template <int M, int N>
struct DoubleWarp {
    double sum[M / 8][N / 8][2];
    static_assert(M % 8 == 0 && N % 8 == 0, "fragments");

    INLINE void clear() {
#pragma unroll
        for (int i = 0; i < M / 8; ++i)
#pragma unroll
            for (int j = 0; j < N / 8; ++j) sum[i][j][0] = sum[i][j][1] = 0;
    }
    template <int DEPTH, int A_STRIDE, int B_STRIDE>
    INLINE void multiply(const double* a, const double* b) {
#pragma unroll
        for (int k = 0; k < DEPTH; k += 4) {
            double left[M / 8], right[N / 8];
#pragma unroll
            for (int i = 0; i < M / 8; ++i) left[i] = a[8 * i * A_STRIDE + k];
#pragma unroll
            for (int j = 0; j < N / 8; ++j) right[j] = b[k * B_STRIDE + 8 * j];
#pragma unroll
            for (int i = 0; i < M / 8; ++i)
#pragma unroll
                for (int j = 0; j < N / 8; ++j)
                    asm volatile(
                        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, "
                        "{%0, %1};"
                        : "+d"(sum[i][j][0]), "+d"(sum[i][j][1])
                        : "d"(left[i]), "d"(right[j]));
        }
    }
    template <typename F>
    INLINE void each(const F& f) const {
#pragma unroll
        for (int i = 0; i < M / 8; ++i)
#pragma unroll
            for (int j = 0; j < N / 8; ++j) f(8 * i, 8 * j, sum[i][j][0], sum[i][j][1]);
    }
};

template <int M, int N>
INLINE Warp<M, N> warp_of(float) {
    return {};
}
template <int M, int N>
INLINE DoubleWarp<M, N> warp_of(double) {
    return {};
}

struct alignas(2 * sizeof(T)) Pair {
    T v[2];
};

template <typename S>
INLINE void multiply_tile(const Products& all, T* a_slices, T* b_slices) {
    const Product& p = product_of_block(all);
    int first_row, first_column;
    find_tile<S>(p, first_row, first_column);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    const T* a_row[S::A_LOADS];  // null: no such row
#pragma unroll
    for (int i = 0; i < S::A_LOADS; ++i) {
        const int row = first_row + (int(threadIdx.x) + i * S::THREADS) / S::SLICE_PACKS;
        a_row[i] = row < p.rows ? p.a + row_start(p, row, p.a_width, p.a_step) : nullptr;
    }
    const int b_place = threadIdx.x % S::ROW_PACKS * LANE_ITEMS;
    const bool column = first_column + b_place < p.columns;
    const T* const b_column = p.b + (column ? first_column + b_place : 0);
    const auto start = [&](int from, T* a_slice, T* b_slice) {
#pragma unroll
        for (int i = 0; i < S::A_LOADS; ++i) {
            const int place = threadIdx.x + i * S::THREADS;
            const int k = place % S::SLICE_PACKS * LANE_ITEMS, left = p.depth - from - k;
            const bool there = a_row[i] != nullptr && left > 0;
            start_copy(a_slice + place / S::SLICE_PACKS * S::A_STRIDE + k,
                       there ? a_row[i] + from + k : p.a,
                       there ? min(left, LANE_ITEMS) * int(sizeof(T)) : 0);
        }
#pragma unroll
        for (int i = 0; i < S::B_LOADS; ++i) {
            const int k = threadIdx.x / S::ROW_PACKS + i * (S::THREADS / S::ROW_PACKS);
            const bool there = column && from + k < p.depth;
            start_copy(b_slice + k * S::B_STRIDE + b_place,
                       b_column + (there ? Long(from + k) * p.columns : Long(0)), there ? 16 : 0);
        }
    };

    const int warp_row = warp / S::ACROSS * S::WARP_ROWS;
    const int warp_column = warp % S::ACROSS * S::WARP_COLUMNS;
    auto sums = warp_of<S::WARP_ROWS, S::WARP_COLUMNS>(T(0));
    sums.clear();
    start(0, a_slices, b_slices);
    int now = 0;
    for (int k = 0; k < p.depth; k += S::DEPTH) {
        end_copies();
        __syncthreads();
        const int next = now ^ 1;
        if (k + S::DEPTH < p.depth)
            start(k + S::DEPTH, a_slices + next * S::A_ITEMS, b_slices + next * S::B_ITEMS);
        sums.template multiply<S::DEPTH, S::A_STRIDE, S::B_STRIDE>(
            a_slices + now * S::A_ITEMS + (warp_row + lane / 4) * S::A_STRIDE + lane % 4,
            b_slices + now * S::B_ITEMS + lane % 4 * S::B_STRIDE + warp_column + lane / 4);
        now = next;
    }
    sums.each([&](int row, int at, T first, T second) {
        const int r = first_row + warp_row + lane / 4 + row;
        const int c = first_column + warp_column + lane % 4 * 2 + at;
        if (r >= p.rows || c >= p.columns) return;
        T* const to = p.c + row_start(p, r, p.c_width, p.c_step) + c;
        Pair out = {{first, second}};
        if (p.add) {
            const Pair old = *(const Pair*)to;
            out.v[0] += old.v[0];
            out.v[1] += old.v[1];
        }
        *(Pair*)to = out;
    });
}
)CUDA"
