// mdcg VERSION, problem 8ca99d92f88d00f7, kernel conv_backward_wants_xyw_paired
// HostPlan x86-64-v3: 8 lanes, 64 senders per block, sums of 24576 bytes, prefetch 2 edges ahead, streaming stores True
// arg: n_rows, x, y, w, g, dx, dy, dw, order, sender, receiver, task_ptr, n_block, weight_row
typedef float T;
#define L 8
#define MDCG_ITEM_BYTES 4
#define MDCG_VECTOR_BYTES 32
#define EDGE_DIM 4
// (prelude.hpp)

MDCG_INLINE void load_attributes(const T* y, const int64_t* id, int n, T* t) {
    constexpr int DIM = EDGE_DIM;
    for (int k = 0; k < n; ++k)
        for (int b = 0; b < DIM; ++b) t[b * L + k] = y[id[k] * DIM + b];
    for (int k = n; k < L; ++k)
        for (int b = 0; b < DIM; ++b) t[b * L + k] = 0;
}

static void pack_in1(const T* __restrict src, T* __restrict dst) {
    pack_mul_ir<8, 1>(src + 0, dst + 0);
    pack_mul_ir<8, 3>(src + 8, dst + 8);
}
extern "C" void mdcg_pack_in1(const int64_t* arg, int64_t task, char*) {
    const int64_t end = (task + 1) * 64 < arg[0] ? (task + 1) * 64 : arg[0];
    for (int64_t r = task * 64; r < end; ++r)
        pack_in1((const T*)arg[1] + r * 32, (T*)arg[2] + r * 32);
}
static void unpack_in1(const T* __restrict src, T* __restrict dst) {
    unpack_mul_ir<8, 1>(src + 0, dst + 0);
    unpack_mul_ir<8, 3>(src + 8, dst + 8);
}
extern "C" void mdcg_unpack_in1(const int64_t* arg, int64_t task, char*) {
    const int64_t end = (task + 1) * 64 < arg[0] ? (task + 1) * 64 : arg[0];
    for (int64_t r = task * 64; r < end; ++r)
        unpack_in1((const T*)arg[1] + r * 32, (T*)arg[2] + r * 32);
}
static void pack_out(const T* __restrict src, T* __restrict dst) {
    pack_mul_ir<8, 1>(src + 0, dst + 0);
    pack_mul_ir<8, 3>(src + 8, dst + 8);
}
extern "C" void mdcg_pack_out(const int64_t* arg, int64_t task, char*) {
    const int64_t end = (task + 1) * 64 < arg[0] ? (task + 1) * 64 : arg[0];
    for (int64_t r = task * 64; r < end; ++r)
        pack_out((const T*)arg[1] + r * 32, (T*)arg[2] + r * 32);
}
static void unpack_out(const T* __restrict src, T* __restrict dst) {
    unpack_mul_ir<8, 1>(src + 0, dst + 0);
    unpack_mul_ir<8, 3>(src + 8, dst + 8);
}
extern "C" void mdcg_unpack_out(const int64_t* arg, int64_t task, char*) {
    const int64_t end = (task + 1) * 64 < arg[0] ? (task + 1) * 64 : arg[0];
    for (int64_t r = task * 64; r < end; ++r)
        unpack_out((const T*)arg[1] + r * 32, (T*)arg[2] + r * 32);
}
static void slots(const T* __restrict y, T* __restrict m) {
    {
        const V y0 = *(const V*)(y + 0 * L);
        V m0 = y0;
        *(V*)(m + 0 * L) = m0;
    }
    {
        const V y1 = *(const V*)(y + 1 * L);
        const V y2 = *(const V*)(y + 2 * L);
        const V y3 = *(const V*)(y + 3 * L);
        V m0 = splat(T(0x1.279a74590331dp-1)) * y1;
        V m1 = splat(T(0x1.279a74590331dp-1)) * y2;
        V m2 = splat(T(0x1.279a74590331dp-1)) * y3;
        *(V*)(m + 1 * L) = m0;
        *(V*)(m + 2 * L) = m1;
        *(V*)(m + 3 * L) = m2;
    }
    {
        const V y0 = *(const V*)(y + 0 * L);
        V m0 = splat(T(0x1.279a74590331dp-1)) * y0;
        *(V*)(m + 4 * L) = m0;
    }
    {
        const V y1 = *(const V*)(y + 1 * L);
        const V y2 = *(const V*)(y + 2 * L);
        const V y3 = *(const V*)(y + 3 * L);
        V m0 = splat(T(0x1.279a74590331cp-1)) * y1;
        V m1 = splat(T(0x1.279a74590331cp-1)) * y2;
        V m2 = splat(T(0x1.279a74590331cp-1)) * y3;
        *(V*)(m + 5 * L) = m0;
        *(V*)(m + 6 * L) = m1;
        *(V*)(m + 7 * L) = m2;
    }
}
static void attribute_gradient(const V* __restrict p, T* __restrict dy) {
    { const V t = p[0] + splat(T(0x1.279a74590331dp-1)) * p[4]; dy[0] = lane_sum(t); }
    { const V t = splat(T(0x1.279a74590331dp-1)) * p[1] + splat(T(0x1.279a74590331cp-1)) * p[5]; dy[1] = lane_sum(t); }
    { const V t = splat(T(0x1.279a74590331dp-1)) * p[2] + splat(T(0x1.279a74590331cp-1)) * p[6]; dy[2] = lane_sum(t); }
    { const V t = splat(T(0x1.279a74590331dp-1)) * p[3] + splat(T(0x1.279a74590331cp-1)) * p[7]; dy[3] = lane_sum(t); }
}
// uvu, 8 -> 8 channels, 1 -> 1 components, 1 entries, 1 slots
template <bool FIRST>
static void path0(const T* __restrict x, const T* __restrict m, const T* __restrict g, T* __restrict dx, V* __restrict p, T* dw, const T* old, const T* __restrict w, const T* __restrict ahead) {
    constexpr int MUL = 8, MP = padded(MUL);
    const V m0 = splat(m[0 * L]);
    V p0 = {};
    auto body_u = [&](auto n, int u) __attribute__((always_inline)) {
        constexpr int N = decltype(n)::value;
        (void)N;
        const V wv = load_strided<N, 1>(w + u * 1);
        __builtin_prefetch(ahead + u * 1);
        const V x0 = load<L>(x + 0 * MP + u);
        const V g0 = load<L>(g + 0 * MP + u);
        V s0 = wv * x0;
        V q0 = m0 * g0;
        V d0 = wv * q0;
        V dwv = x0 * q0;
        p0 = p0 + s0 * g0;
        store<L>(dx + 0 * MP + u, load<L>(dx + 0 * MP + u) + d0);
        store_strided<N, 1>(dw + u * 1, load_strided<N, 1>(old + u * 1) + dwv);
    };
    for (int i = 0; i + L <= MUL; i += L) body_u(Int<L>{}, i);
    if constexpr (MUL % L != 0) body_u(Int<MUL % L>{}, MUL / L * L);
    p[0] = FIRST ? p0 : p[0] + p0;
}
// uvu, 8 -> 8 channels, 1 -> 3 components, 3 entries, 3 slots
template <bool FIRST>
static void path1(const T* __restrict x, const T* __restrict m, const T* __restrict g, T* __restrict dx, V* __restrict p, T* dw, const T* old, const T* __restrict w, const T* __restrict ahead) {
    constexpr int MUL = 8, MP = padded(MUL);
    const V m0 = splat(m[0 * L]);
    const V m1 = splat(m[1 * L]);
    const V m2 = splat(m[2 * L]);
    V p0 = {};
    V p1 = {};
    V p2 = {};
    auto body_u = [&](auto n, int u) __attribute__((always_inline)) {
        constexpr int N = decltype(n)::value;
        (void)N;
        const V wv = load_strided<N, 1>(w + u * 1);
        __builtin_prefetch(ahead + u * 1);
        const V x0 = load<L>(x + 0 * MP + u);
        const V g0 = load<L>(g + 0 * MP + u);
        const V g1 = load<L>(g + 1 * MP + u);
        const V g2 = load<L>(g + 2 * MP + u);
        V s0 = wv * x0;
        V q0 = m0 * g0 + m1 * g1 + m2 * g2;
        V d0 = wv * q0;
        V dwv = x0 * q0;
        p0 = p0 + s0 * g0;
        p1 = p1 + s0 * g1;
        p2 = p2 + s0 * g2;
        store<L>(dx + 0 * MP + u, load<L>(dx + 0 * MP + u) + d0);
        store_strided<N, 1>(dw + u * 1, load_strided<N, 1>(old + u * 1) + dwv);
    };
    for (int i = 0; i + L <= MUL; i += L) body_u(Int<L>{}, i);
    if constexpr (MUL % L != 0) body_u(Int<MUL % L>{}, MUL / L * L);
    p[0] = FIRST ? p0 : p[0] + p0;
    p[1] = FIRST ? p1 : p[1] + p1;
    p[2] = FIRST ? p2 : p[2] + p2;
}
// uvu, 8 -> 8 channels, 3 -> 3 components, 3 entries, 1 slots
template <bool FIRST>
static void path2(const T* __restrict x, const T* __restrict m, const T* __restrict g, T* __restrict dx, V* __restrict p) {
    constexpr int MUL = 8, MP = padded(MUL);
    const V m0 = splat(m[0 * L]);
    V p0 = {};
    auto body_u = [&](auto n, int u) __attribute__((always_inline)) {
        constexpr int N = decltype(n)::value;
        (void)N;
        const V x0 = load<L>(x + 0 * MP + u);
        const V x1 = load<L>(x + 1 * MP + u);
        const V x2 = load<L>(x + 2 * MP + u);
        const V g0 = load<L>(g + 0 * MP + u);
        const V g1 = load<L>(g + 1 * MP + u);
        const V g2 = load<L>(g + 2 * MP + u);
        V s0 = x0;
        V s1 = x1;
        V s2 = x2;
        V q0 = m0 * g0;
        V d0 = q0;
        V q1 = m0 * g1;
        V d1 = q1;
        V q2 = m0 * g2;
        V d2 = q2;
        p0 = p0 + s0 * g0 + s1 * g1 + s2 * g2;
        store<L>(dx + 0 * MP + u, load<L>(dx + 0 * MP + u) + d0);
        store<L>(dx + 1 * MP + u, load<L>(dx + 1 * MP + u) + d1);
        store<L>(dx + 2 * MP + u, load<L>(dx + 2 * MP + u) + d2);
    };
    for (int i = 0; i + L <= MUL; i += L) body_u(Int<L>{}, i);
    if constexpr (MUL % L != 0) body_u(Int<MUL % L>{}, MUL / L * L);
    p[0] = FIRST ? p0 : p[0] + p0;
}
// uvu, 8 -> 8 channels, 3 -> 1 components, 3 entries, 3 slots
template <bool FIRST>
static void path3(const T* __restrict x, const T* __restrict m, const T* __restrict g, T* __restrict dx, V* __restrict p, T* dw, const T* old, const T* __restrict w, const T* __restrict ahead) {
    constexpr int MUL = 8, MP = padded(MUL);
    const V m0 = splat(m[0 * L]);
    const V m1 = splat(m[1 * L]);
    const V m2 = splat(m[2 * L]);
    V p0 = {};
    V p1 = {};
    V p2 = {};
    auto body_u = [&](auto n, int u) __attribute__((always_inline)) {
        constexpr int N = decltype(n)::value;
        (void)N;
        const V wv = load_strided<N, 1>(w + u * 1);
        __builtin_prefetch(ahead + u * 1);
        const V x0 = load<L>(x + 0 * MP + u);
        const V x1 = load<L>(x + 1 * MP + u);
        const V x2 = load<L>(x + 2 * MP + u);
        const V g0 = load<L>(g + 0 * MP + u);
        V s0 = wv * x0;
        V s1 = wv * x1;
        V s2 = wv * x2;
        V q0 = m0 * g0;
        V d0 = wv * q0;
        V q1 = m1 * g0;
        V d1 = wv * q1;
        V q2 = m2 * g0;
        V d2 = wv * q2;
        V dwv = x0 * q0 + x1 * q1 + x2 * q2;
        p0 = p0 + s0 * g0;
        p1 = p1 + s1 * g0;
        p2 = p2 + s2 * g0;
        store<L>(dx + 0 * MP + u, load<L>(dx + 0 * MP + u) + d0);
        store<L>(dx + 1 * MP + u, load<L>(dx + 1 * MP + u) + d1);
        store<L>(dx + 2 * MP + u, load<L>(dx + 2 * MP + u) + d2);
        store_strided<N, 1>(dw + u * 1, load_strided<N, 1>(old + u * 1) + dwv);
    };
    for (int i = 0; i + L <= MUL; i += L) body_u(Int<L>{}, i);
    if constexpr (MUL % L != 0) body_u(Int<MUL % L>{}, MUL / L * L);
    p[0] = FIRST ? p0 : p[0] + p0;
    p[1] = FIRST ? p1 : p[1] + p1;
    p[2] = FIRST ? p2 : p[2] + p2;
}
MDCG_INLINE void edge0(const T* x, const T* xa, const T* w, const T* ahead, const T* wc, const T* g, const T* m, const T* mb, const T* old, T* o, T* dx, T* dw, V* p, T* z) {
    path0<true>(x + 0, m + 0 * L, g + 0, dx + 0, p + 0, dw + 0, old + 0, w + 0, ahead + 0);
    path1<true>(x + 0, m + 1 * L, g + 8, dx + 0, p + 1, dw + 8, old + 8, w + 8, ahead + 8);
    path2<true>(x + 8, m + 4 * L, g + 8, dx + 8, p + 4);
    path3<true>(x + 8, m + 5 * L, g + 0, dx + 8, p + 5, dw + 16, old + 16, w + 16, ahead + 16);
}
extern "C" void mdcg_run(const int64_t* arg, int64_t task, char* scratch) {
    const int64_t n_rows = arg[0];
    T* const x_base = (T*)arg[1];
    T* const y_base = (T*)arg[2];
    T* const w_base = (T*)arg[3];
    T* const g_base = (T*)arg[4];
    T* const dx_base = (T*)arg[5];
    T* const dy_base = (T*)arg[6];
    T* const dw_base = (T*)arg[7];
    const int32_t* const order = (const int32_t*)arg[8];
    const int32_t* const sender = (const int32_t*)arg[9];
    const int32_t* const receiver = (const int32_t*)arg[10];
    const int64_t* const task_ptr = (const int64_t*)arg[11];
    const int64_t n_block = arg[12];
    const int32_t* const weight_row = (const int32_t*)arg[13];
    T* const yt = (T*)(scratch + 0);
    T* const m = (T*)(scratch + 128);
    T* const z = (T*)(scratch + 384);
    V* const p = (V*)(scratch + 448);
    T* const zeros = (T*)(scratch + 704);
    T* const edge_dx = (T*)(scratch + 832);
    for (int i = 0; i < 24; ++i) zeros[i] = 0;
    const int64_t first = task_ptr[2 * task];
    const int64_t stop = task_ptr[2 * task + 1];
    for (int64_t e = first; e < stop; e += L) {
        const int n = stop - e < L ? (int)(stop - e) : L;
        int64_t id[L];
        for (int k = 0; k < n; ++k) id[k] = order[e + k];
        load_attributes(y_base, id, n, yt);
        slots(yt, m);
        for (int k = 0; k < n; ++k) {
            const bool again = e + k > first && weight_row[order[e + k - 1]] == weight_row[id[k]];
            const T* old = again ? dw_base + (int64_t)weight_row[id[k]] * 24 : zeros;
            const T* ahead = w_base + (e + k + 2 < stop ? (int64_t)weight_row[order[e + k + 2]] : 0) * 24;
            zero<32>(edge_dx);
            edge0(x_base + (int64_t)sender[e + k] * 32, nullptr, w_base + (int64_t)weight_row[id[k]] * 24, ahead, nullptr, g_base + (int64_t)receiver[e + k] * 32, m + k, nullptr, old, nullptr, edge_dx, dw_base + (int64_t)weight_row[id[k]] * 24, p, z);
            attribute_gradient(p, dy_base + id[k] * 4);
            add<32>(edge_dx, dx_base + (int64_t)sender[e + k] * 32);
        }
    }
}
