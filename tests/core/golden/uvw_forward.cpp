// mdcg VERSION, problem 29458da06e443329, kernel conv_forward
// HostPlan x86-64-v3: 4 lanes, 64 senders per block, sums of 24576 bytes, prefetch 2 edges ahead, streaming stores True
// arg: n_rows, x, y, w, out, order, sender, row_ptr, task_ptr
typedef double T;
#define L 4
#define MDCG_ITEM_BYTES 8
#define MDCG_VECTOR_BYTES 32
#define EDGE_DIM 6
// (prelude.hpp)

MDCG_INLINE void load_attributes(const T* y, const int64_t* id, int n, T* t) {
    constexpr int DIM = EDGE_DIM;
    for (int k = 0; k < n; ++k)
        for (int b = 0; b < DIM; ++b) t[b * L + k] = y[id[k] * DIM + b];
    for (int k = n; k < L; ++k)
        for (int b = 0; b < DIM; ++b) t[b * L + k] = 0;
}

static void pack_in1(const T* __restrict src, T* __restrict dst) {
    pack_mul_ir<3, 3>(src + 0, dst + 0);
}
extern "C" void mdcg_pack_in1(const int64_t* arg, int64_t task, char*) {
    const int64_t end = (task + 1) * 64 < arg[0] ? (task + 1) * 64 : arg[0];
    for (int64_t r = task * 64; r < end; ++r)
        pack_in1((const T*)arg[1] + r * 9, (T*)arg[2] + r * 12);
}
static void unpack_in1(const T* __restrict src, T* __restrict dst) {
    unpack_mul_ir<3, 3>(src + 0, dst + 0);
}
extern "C" void mdcg_unpack_in1(const int64_t* arg, int64_t task, char*) {
    const int64_t end = (task + 1) * 64 < arg[0] ? (task + 1) * 64 : arg[0];
    for (int64_t r = task * 64; r < end; ++r)
        unpack_in1((const T*)arg[1] + r * 12, (T*)arg[2] + r * 9);
}
static void pack_out(const T* __restrict src, T* __restrict dst) {
    pack_mul_ir<5, 1>(src + 0, dst + 0);
    pack_mul_ir<3, 3>(src + 5, dst + 8);
}
extern "C" void mdcg_pack_out(const int64_t* arg, int64_t task, char*) {
    const int64_t end = (task + 1) * 64 < arg[0] ? (task + 1) * 64 : arg[0];
    for (int64_t r = task * 64; r < end; ++r)
        pack_out((const T*)arg[1] + r * 14, (T*)arg[2] + r * 20);
}
static void unpack_out(const T* __restrict src, T* __restrict dst) {
    unpack_mul_ir<5, 1>(src + 0, dst + 0);
    unpack_mul_ir<3, 3>(src + 8, dst + 5);
}
extern "C" void mdcg_unpack_out(const int64_t* arg, int64_t task, char*) {
    const int64_t end = (task + 1) * 64 < arg[0] ? (task + 1) * 64 : arg[0];
    for (int64_t r = task * 64; r < end; ++r)
        unpack_out((const T*)arg[1] + r * 20, (T*)arg[2] + r * 14);
}
static void slots(const T* __restrict y, T* __restrict m) {
    {
        const V y0 = *(const V*)(y + 0 * L);
        const V y1 = *(const V*)(y + 1 * L);
        const V y2 = *(const V*)(y + 2 * L);
        V m0 = splat(T(0x1.279a74590331cp-1)) * y0;
        V m1 = splat(T(0x1.279a74590331cp-1)) * y1;
        V m2 = splat(T(0x1.279a74590331cp-1)) * y2;
        *(V*)(m + 0 * L) = m0;
        *(V*)(m + 1 * L) = m1;
        *(V*)(m + 2 * L) = m2;
    }
    {
        const V y3 = *(const V*)(y + 3 * L);
        const V y4 = *(const V*)(y + 4 * L);
        const V y5 = *(const V*)(y + 5 * L);
        V m0 = splat(T(0x1.279a74590331cp-1)) * y3;
        V m1 = splat(T(0x1.279a74590331cp-1)) * y4;
        V m2 = splat(T(0x1.279a74590331cp-1)) * y5;
        *(V*)(m + 3 * L) = m0;
        *(V*)(m + 4 * L) = m1;
        *(V*)(m + 5 * L) = m2;
    }
    {
        const V y0 = *(const V*)(y + 0 * L);
        const V y1 = *(const V*)(y + 1 * L);
        const V y2 = *(const V*)(y + 2 * L);
        V m0 = splat(T(0x1.a20bd700c2c3fp-2)) * y2;
        V m1 = -splat(T(0x1.a20bd700c2c3fp-2)) * y1;
        V m2 = splat(T(0x1.a20bd700c2c3fp-2)) * y0;
        *(V*)(m + 6 * L) = m0;
        *(V*)(m + 7 * L) = m1;
        *(V*)(m + 8 * L) = m2;
    }
    {
        const V y3 = *(const V*)(y + 3 * L);
        const V y4 = *(const V*)(y + 4 * L);
        const V y5 = *(const V*)(y + 5 * L);
        V m0 = splat(T(0x1.a20bd700c2c3fp-2)) * y5;
        V m1 = -splat(T(0x1.a20bd700c2c3fp-2)) * y4;
        V m2 = splat(T(0x1.a20bd700c2c3fp-2)) * y3;
        *(V*)(m + 9 * L) = m0;
        *(V*)(m + 10 * L) = m1;
        *(V*)(m + 11 * L) = m2;
    }
}
// uvw, 3 -> 5 channels, 3 -> 1 components, 3 entries, 3 slots
static void path0(const T* __restrict x, const T* __restrict m, T* __restrict o, const T* __restrict w, T* __restrict z) {
    constexpr int MUL = 3, MP = padded(MUL);
    const V m0 = splat(m[0 * L]);
    const V m1 = splat(m[1 * L]);
    const V m2 = splat(m[2 * L]);
    constexpr int MOUT = 5, MO = padded(MOUT), ROWS = 1 * MP;
    T *const zx = z, *const zt = z + ROWS, *const zp = z + 2 * ROWS, *const zq = z + 3 * ROWS;
    (void)zx; (void)zt; (void)zp; (void)zq; (void)MO;
    auto body_u = [&](auto n, int u) __attribute__((always_inline)) {
        constexpr int N = decltype(n)::value;
        (void)N;
        const V x0 = load<L>(x + 0 * MP + u);
        const V x1 = load<L>(x + 1 * MP + u);
        const V x2 = load<L>(x + 2 * MP + u);
        V zx0 = m0 * x0 + m1 * x1 + m2 * x2;
        store<L>(zx + 0 * MP + u, zx0);
    };
    for (int i = 0; i + L <= MUL; i += L) body_u(Int<L>{}, i);
    if constexpr (MUL % L != 0) body_u(Int<MUL % L>{}, MUL / L * L);
    auto body_o_ = [&](auto n, int o_) __attribute__((always_inline)) {
        constexpr int N = decltype(n)::value;
        (void)N;
        V o0 = {};
        for (int u = 0; u < MUL; ++u) {
            const V wv = load<N>(w + u * 2 * MOUT + o_);
            o0 += wv * splat(zx[0 * MP + u]);
        }
        store<L>(o + 0 * MO + o_, load<L>(o + 0 * MO + o_) + o0);
    };
    for (int i = 0; i + L <= MOUT; i += L) body_o_(Int<L>{}, i);
    if constexpr (MOUT % L != 0) body_o_(Int<MOUT % L>{}, MOUT / L * L);
}
// uvu, 3 -> 3 channels, 3 -> 3 components, 6 entries, 3 slots
static void path1(const T* __restrict x, const T* __restrict m, T* __restrict o, const T* __restrict w, const T* __restrict ahead) {
    constexpr int MUL = 3, MP = padded(MUL);
    const V m0 = splat(m[0 * L]);
    const V m1 = splat(m[1 * L]);
    const V m2 = splat(m[2 * L]);
    auto body_u = [&](auto n, int u) __attribute__((always_inline)) {
        constexpr int N = decltype(n)::value;
        (void)N;
        const V wv = load_strided<N, 2>(w + u * 2);
        __builtin_prefetch(ahead + u * 2);
        const V x0 = load<L>(x + 0 * MP + u);
        const V x1 = load<L>(x + 1 * MP + u);
        const V x2 = load<L>(x + 2 * MP + u);
        V s0 = wv * x0;
        V s1 = wv * x1;
        V s2 = wv * x2;
        V o0 = m0 * s1 + m1 * s2;
        store<L>(o + 0 * MP + u, load<L>(o + 0 * MP + u) + o0);
        V o1 = -m0 * s0 + m2 * s2;
        store<L>(o + 1 * MP + u, load<L>(o + 1 * MP + u) + o1);
        V o2 = -m1 * s0 - m2 * s1;
        store<L>(o + 2 * MP + u, load<L>(o + 2 * MP + u) + o2);
    };
    for (int i = 0; i + L <= MUL; i += L) body_u(Int<L>{}, i);
    if constexpr (MUL % L != 0) body_u(Int<MUL % L>{}, MUL / L * L);
}
MDCG_INLINE void edge0(const T* x, const T* xa, const T* w, const T* ahead, const T* wc, const T* g, const T* m, const T* mb, T* o, T* dx, T* dw, V* p, T* z) {
    path0(x + 0, m + 0 * L, o + 0, w + 0, z);
    path0(x + 0, m + 3 * L, o + 0, w + 5, z);
    path1(x + 0, m + 6 * L, o + 8, w + 30, ahead + 30);
    path1(x + 0, m + 9 * L, o + 8, w + 31, ahead + 31);
}
extern "C" void mdcg_run(const int64_t* arg, int64_t task, char* scratch) {
    const int64_t n_rows = arg[0];
    T* const x_base = (T*)arg[1];
    T* const y_base = (T*)arg[2];
    T* const w_base = (T*)arg[3];
    T* const out_base = (T*)arg[4];
    const int32_t* const order = (const int32_t*)arg[5];
    const int32_t* const sender = (const int32_t*)arg[6];
    const int64_t* const row_ptr = (const int64_t*)arg[7];
    const int64_t* const task_ptr = (const int64_t*)arg[8];
    T* const yt = (T*)(scratch + 0);
    T* const m = (T*)(scratch + 192);
    T* const z = (T*)(scratch + 576);
    T* const acc = (T*)(scratch + 704);
    const int64_t last_row = task_ptr[task + 1], stop = row_ptr[last_row];
    (void)stop;
    for (int64_t row = task_ptr[task]; row < last_row; ++row) {
        zero<20>(acc);
        const int64_t end = row_ptr[row + 1];
        for (int64_t e = row_ptr[row]; e < end; e += L) {
            const int n = end - e < L ? (int)(end - e) : L;
            int64_t id[L];
            for (int k = 0; k < n; ++k) id[k] = order[e + k];
            load_attributes(y_base, id, n, yt);
            slots(yt, m);
            for (int k = 0; k < n; ++k) {
                const T* ahead = w_base + (e + k + 2 < stop ? (int64_t)order[e + k + 2] : 0) * 36;
                edge0(x_base + (int64_t)sender[e + k] * 12, nullptr, w_base + id[k] * 36, ahead, nullptr, nullptr, m + k, nullptr, acc, nullptr, nullptr, nullptr, z);
            }
        }
        unpack_out(acc, out_base + row * 14);
    }
}
