// mdcg VERSION, problem c0b92e6438146d9e, kernel contraction_double_backward_given_xw_wants_xwg
// HostContractionPlan x86-64-v3: 8 lanes, 4 nodes per task
// arg: n_rows, x, w, y, n_species, g, a, b, dx, dw, dg
typedef float T;
#define L 8
#define MDCG_ITEM_BYTES 4
#define MDCG_VECTOR_BYTES 32
#define WIDTH 24  // of a species
#define COLUMNS 512
// (prelude.hpp)

typedef int32_t I __attribute__((vector_size(L * sizeof(T))));
#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (I){__VA_ARGS__})
#endif
MDCG_INLINE void transpose(V* r) {
    { const V s = SHUFFLE(r[0], r[1], 0, 8, 2, 10, 4, 12, 6, 14);
      r[1] = SHUFFLE(r[0], r[1], 1, 9, 3, 11, 5, 13, 7, 15);
      r[0] = s; }
    { const V s = SHUFFLE(r[2], r[3], 0, 8, 2, 10, 4, 12, 6, 14);
      r[3] = SHUFFLE(r[2], r[3], 1, 9, 3, 11, 5, 13, 7, 15);
      r[2] = s; }
    { const V s = SHUFFLE(r[4], r[5], 0, 8, 2, 10, 4, 12, 6, 14);
      r[5] = SHUFFLE(r[4], r[5], 1, 9, 3, 11, 5, 13, 7, 15);
      r[4] = s; }
    { const V s = SHUFFLE(r[6], r[7], 0, 8, 2, 10, 4, 12, 6, 14);
      r[7] = SHUFFLE(r[6], r[7], 1, 9, 3, 11, 5, 13, 7, 15);
      r[6] = s; }
    { const V s = SHUFFLE(r[0], r[2], 0, 1, 8, 9, 4, 5, 12, 13);
      r[2] = SHUFFLE(r[0], r[2], 2, 3, 10, 11, 6, 7, 14, 15);
      r[0] = s; }
    { const V s = SHUFFLE(r[1], r[3], 0, 1, 8, 9, 4, 5, 12, 13);
      r[3] = SHUFFLE(r[1], r[3], 2, 3, 10, 11, 6, 7, 14, 15);
      r[1] = s; }
    { const V s = SHUFFLE(r[4], r[6], 0, 1, 8, 9, 4, 5, 12, 13);
      r[6] = SHUFFLE(r[4], r[6], 2, 3, 10, 11, 6, 7, 14, 15);
      r[4] = s; }
    { const V s = SHUFFLE(r[5], r[7], 0, 1, 8, 9, 4, 5, 12, 13);
      r[7] = SHUFFLE(r[5], r[7], 2, 3, 10, 11, 6, 7, 14, 15);
      r[5] = s; }
    { const V s = SHUFFLE(r[0], r[4], 0, 1, 2, 3, 8, 9, 10, 11);
      r[4] = SHUFFLE(r[0], r[4], 4, 5, 6, 7, 12, 13, 14, 15);
      r[0] = s; }
    { const V s = SHUFFLE(r[1], r[5], 0, 1, 2, 3, 8, 9, 10, 11);
      r[5] = SHUFFLE(r[1], r[5], 4, 5, 6, 7, 12, 13, 14, 15);
      r[1] = s; }
    { const V s = SHUFFLE(r[2], r[6], 0, 1, 2, 3, 8, 9, 10, 11);
      r[6] = SHUFFLE(r[2], r[6], 4, 5, 6, 7, 12, 13, 14, 15);
      r[2] = s; }
    { const V s = SHUFFLE(r[3], r[7], 0, 1, 2, 3, 8, 9, 10, 11);
      r[7] = SHUFFLE(r[3], r[7], 4, 5, 6, 7, 12, 13, 14, 15);
      r[3] = s; }
}
template <int N, int D>
MDCG_INLINE void load_rows(const T* p, V* v) {
    for (int d = 0; d < D; d += L) {
        V r[L];
        const int width = D - d < L ? D - d : L;
        for (int l = 0; l < L; ++l) r[l] = V{};
        if (width == L) {
            for (int l = 0; l < N; ++l) r[l] = load<L>(p + l * D + d);
        } else {
            for (int l = 0; l < N; ++l) r[l] = load<D % L ? D % L : L>(p + l * D + d);
        }
        transpose(r);
        for (int i = 0; i < width; ++i) v[d + i] = r[i];
    }
}

template <int N, int D>
MDCG_INLINE void store_rows(T* p, const V* v) {
    for (int d = 0; d < D; d += L) {
        V r[L];
        const int width = D - d < L ? D - d : L;
        for (int i = 0; i < L; ++i) r[i] = i < width ? v[d + i] : V{};
        transpose(r);
        if (width == L) {
            for (int l = 0; l < N; ++l) store<L>(p + l * D + d, r[l]);
        } else {
            for (int l = 0; l < N; ++l) store<D % L ? D % L : L>(p + l * D + d, r[l]);
        }
    }
}

static int64_t only_species(const T* y, int64_t n_species) {
    int64_t found = -1;
    for (int64_t s = 0; s < n_species; ++s) {
        if (y[s] == 0) continue;
        if (found >= 0 || y[s] != 1) return -1;
        found = s;
    }
    return found;
}

static void mix(const T* y, int64_t n_species, const T* w, T* sum) {
    for (int64_t i = 0; i < WIDTH; ++i) sum[i] = 0;
    for (int64_t s = 0; s < n_species; ++s) {
        if (y[s] == 0) continue;
        for (int64_t i = 0; i < WIDTH; ++i) sum[i] += y[s] * w[s * WIDTH + i];
    }
}

extern "C" void mdcg_sum(const int64_t* arg, int64_t task, char*) {
    const int64_t blocks = (WIDTH + COLUMNS - 1) / COLUMNS;
    const int64_t s = task / blocks, first = task % blocks * COLUMNS;
    const int64_t n = WIDTH - first < COLUMNS ? WIDTH - first : COLUMNS;
    const int64_t n_species = arg[0];
    const T* const y = (const T*)arg[1];
    const T* const rows = (const T*)arg[2];
    const int64_t* const node = (const int64_t*)arg[3];
    const int64_t* const ptr = (const int64_t*)arg[4];
    T* const out = (T*)arg[5] + s * WIDTH + first;
    T part[COLUMNS];
    for (int64_t i = 0; i < n; ++i) out[i] = 0;
    for (int64_t p = ptr[s]; p < ptr[s + 1]; p += 64) {
        const int64_t end = p + 64 < ptr[s + 1] ? p + 64 : ptr[s + 1];
        for (int64_t i = 0; i < n; ++i) part[i] = 0;
        for (int64_t q = p; q < end; ++q) {
            const T weight = y[node[q] * n_species + s];
            const T* const row = rows + node[q] * WIDTH + first;
            for (int64_t i = 0; i < n; ++i) part[i] += weight * row[i];
        }
        for (int64_t i = 0; i < n; ++i) out[i] += part[i];
    }
}

static __attribute__((noinline)) void group0(const V* x, const V* a, const T* c, const T* b, int64_t cs, const V* g, V* o, V* dx, T* dc, int64_t ds) {
    const V a0 = (V)(a[0]);
    const V a1 = (V)(a[1]);
    const V a2 = (V)(a[2]);
    const V a3 = (V)(a[3]);
    const V b1 = (V)(*(const VU*)(b + 1 * cs));
    const V b2 = (V)(*(const VU*)(b + 2 * cs));
    const V c1 = (V)(*(const VU*)(c + 1 * cs));
    const V c2 = (V)(*(const VU*)(c + 2 * cs));
    const V g0 = (V)(g[0]);
    const V g1 = (V)(g[1]);
    const V g2 = (V)(g[2]);
    const V g3 = (V)(g[3]);
    const V x0 = (V)(x[0]);
    const V x1 = (V)(x[1]);
    const V x2 = (V)(x[2]);
    const V x3 = (V)(x[3]);
    const V t0 = x0 * x1;
    const V t1 = x0 * x2;
    const V t2 = x0 * x3;
    const V t3 = splat(T(0x1.0000000000000p-1)) * t0;
    const V t4 = splat(T(0x1.0000000000000p-1)) * t1;
    const V t5 = splat(T(0x1.0000000000000p-1)) * t2;
    const V t6 = splat(T(0x1.0000000000000p+1)) * t0;
    const V t7 = splat(T(0x1.0000000000000p+1)) * t1;
    const V t8 = splat(T(0x1.0000000000000p+1)) * t2;
    const V t9 = t3 * x1 + t4 * x2 + t5 * x3;
    const V t10 = a0 * x1 + a1 * x0;
    const V t11 = a0 * x2 + a2 * x0;
    const V t12 = a0 * x3 + a3 * x0;
    const V t13 = splat(T(0x1.0000000000000p-1)) * t10;
    const V t14 = splat(T(0x1.0000000000000p-1)) * t11;
    const V t15 = splat(T(0x1.0000000000000p-1)) * t12;
    const V t16 = splat(T(0x1.0000000000000p+1)) * t10;
    const V t17 = splat(T(0x1.0000000000000p+1)) * t11;
    const V t18 = splat(T(0x1.0000000000000p+1)) * t12;
    const V t19 = t13 * x1 + a1 * t3 + t14 * x2 + a2 * t4 + t15 * x3 + a3 * t5;
    const V t20 = c1 * g0;
    const V t21 = c2 * g3;
    const V t22 = c2 * g2;
    const V t23 = c2 * g1;
    const V t24 = t20 * x3;
    const V t25 = t20 * x2;
    const V t26 = t20 * x1;
    const V t27 = splat(T(0x1.0000000000000p+1)) * t21 + splat(T(0x1.0000000000000p-1)) * t24;
    const V t28 = splat(T(0x1.0000000000000p+1)) * t22 + splat(T(0x1.0000000000000p-1)) * t25;
    const V t29 = splat(T(0x1.0000000000000p+1)) * t23 + splat(T(0x1.0000000000000p-1)) * t26;
    const V t30 = b1 * g0;
    const V t31 = b2 * g3;
    const V t32 = b2 * g2;
    const V t33 = b2 * g1;
    const V t34 = a3 * t20 + t30 * x3;
    const V t35 = a2 * t20 + t30 * x2;
    const V t36 = a1 * t20 + t30 * x1;
    const V t37 = splat(T(0x1.0000000000000p+1)) * t31 + splat(T(0x1.0000000000000p-1)) * t34;
    const V t38 = splat(T(0x1.0000000000000p+1)) * t32 + splat(T(0x1.0000000000000p-1)) * t35;
    const V t39 = splat(T(0x1.0000000000000p+1)) * t33 + splat(T(0x1.0000000000000p-1)) * t36;
    { V t = c2 * t16 + b2 * t6; o[1] = (VU)((V)o[1] + t); }
    { V t = c2 * t17 + b2 * t7; o[2] = (VU)((V)o[2] + t); }
    { V t = c2 * t18 + b2 * t8; o[3] = (VU)((V)o[3] + t); }
    { V t = c1 * t19 + b1 * t9; o[0] = (VU)((V)o[0] + t); }
    { V t = g1 * t16 + g2 * t17 + g3 * t18; *(VU*)(dc + 2 * ds) = (VU)((V)*(VU*)(dc + 2 * ds) + t); }
    { V t = g0 * t19; *(VU*)(dc + 1 * ds) = (VU)((V)*(VU*)(dc + 1 * ds) + t); }
    { V t = a3 * t27 + a2 * t28 + a1 * t29 + t37 * x3 + t38 * x2 + t39 * x1; dx[0] = (VU)((V)dx[0] + t); }
    { V t = t13 * t20 + a0 * t29 + t3 * t30 + t39 * x0; dx[1] = (VU)((V)dx[1] + t); }
    { V t = t14 * t20 + a0 * t28 + t30 * t4 + t38 * x0; dx[2] = (VU)((V)dx[2] + t); }
    { V t = t15 * t20 + a0 * t27 + t30 * t5 + t37 * x0; dx[3] = (VU)((V)dx[3] + t); }
}
static __attribute__((noinline)) void group1(const V* x, const V* a, const T* c, const T* b, int64_t cs, const V* g, V* o, V* dx, T* dc, int64_t ds) {
    const V a1 = (V)(a[1]);
    const V a2 = (V)(a[2]);
    const V a3 = (V)(a[3]);
    const V b0 = (V)(*(const VU*)(b + 0 * cs));
    const V c0 = (V)(*(const VU*)(c + 0 * cs));
    const V g0 = (V)(g[0]);
    const V x1 = (V)(x[1]);
    const V x2 = (V)(x[2]);
    const V x3 = (V)(x[3]);
    const V t0 = x1 * x1;
    const V t1 = x2 * x2;
    const V t2 = x3 * x3;
    const V t3 = t0 + t1 + t2;
    const V t4 = splat(T(0x1.0000000000000p+1)) * a1 * x1;
    const V t5 = splat(T(0x1.0000000000000p+1)) * a2 * x2;
    const V t6 = splat(T(0x1.0000000000000p+1)) * a3 * x3;
    const V t7 = t4 + t5 + t6;
    const V t8 = c0 * g0;
    const V t9 = b0 * g0;
    { V t = c0 * t7 + b0 * t3; o[0] = (VU)((V)o[0] + t); }
    { V t = g0 * t7; *(VU*)(dc + 0 * ds) = (VU)((V)*(VU*)(dc + 0 * ds) + t); }
    { V t = splat(T(0x1.0000000000000p+1)) * a1 * t8 + splat(T(0x1.0000000000000p+1)) * t9 * x1; dx[1] = (VU)((V)dx[1] + t); }
    { V t = splat(T(0x1.0000000000000p+1)) * a2 * t8 + splat(T(0x1.0000000000000p+1)) * t9 * x2; dx[2] = (VU)((V)dx[2] + t); }
    { V t = splat(T(0x1.0000000000000p+1)) * a3 * t8 + splat(T(0x1.0000000000000p+1)) * t9 * x3; dx[3] = (VU)((V)dx[3] + t); }
}
template <int N>
MDCG_INLINE void channels(int u, const T* px, const T* pa, const T* pc, const T* pb, const T* pg, T* po, T* pdx, T* pdc) {
    V x[4], a[4], g[4], o[4], dx[4];
    load_rows<N, 4>(px + u * 4, x);
    load_rows<N, 4>(pa + u * 4, a);
    g[0] = load_strided<N, 1>(pg + 0 + u * 1);
    g[1] = load_strided<N, 3>(pg + 8 + u * 3);
    g[2] = load_strided<N, 3>(pg + 9 + u * 3);
    g[3] = load_strided<N, 3>(pg + 10 + u * 3);
    for (int m = 0; m < 4; ++m) o[m] = V{};
    for (int i = 0; i < 4; ++i) dx[i] = V{};
    constexpr bool WHOLE = N == L;
    alignas(64) T tc[WHOLE ? 1 : 3 * L], tb[WHOLE ? 1 : 3 * L], tdc[WHOLE ? 1 : 3 * L];
    const T* c = pc + u;
    const T* b = pb + u;
    T* dc = pdc + u;
    int64_t s = 8;
    if constexpr (!WHOLE) {
        for (int r = 0; r < 3; ++r) {
            *(V*)(tc + r * L) = load<N>(c + r * 8);
            *(V*)(tb + r * L) = load<N>(b + r * 8);
        }
        c = tc; b = tb; dc = tdc; s = L;
    }
    for (int r = 0; r < 3; ++r) *(VU*)(dc + r * s) = (VU)V{};
    group0(x, a, c, b, s, g, o, dx, dc, s);
    group1(x, a, c, b, s, g, o, dx, dc, s);
    store_strided<N, 1>(po + 0 + u * 1, o[0]);
    store_strided<N, 3>(po + 8 + u * 3, o[1]);
    store_strided<N, 3>(po + 9 + u * 3, o[2]);
    store_strided<N, 3>(po + 10 + u * 3, o[3]);
    store_rows<N, 4>(pdx + u * 4, dx);
    if constexpr (!WHOLE)
        for (int r = 0; r < 3; ++r)
            store<N>(pdc + u + r * 8, *(V*)(tdc + r * L));
}
extern "C" void mdcg_run(const int64_t* arg, int64_t task, char* scratch) {
    const int64_t n_rows = arg[0];
    T* const x = (T*)arg[1];
    T* const w = (T*)arg[2];
    T* const y = (T*)arg[3];
    const int64_t n_species = arg[4];
    T* const g = (T*)arg[5];
    T* const a = (T*)arg[6];
    T* const b = (T*)arg[7];
    T* const dx = (T*)arg[8];
    T* const dw = (T*)arg[9];
    T* const dg = (T*)arg[10];
    T* const mixed_w = (T*)(scratch + 0);
    T* const mixed_b = (T*)(scratch + 128);
    const int64_t last = (task + 1) * 4;
    for (int64_t n = task * 4; n < last && n < n_rows; ++n) {
        const int64_t species = only_species(y + n * n_species, n_species);
        const T* w_row = w + species * WIDTH; if (species < 0) { mix(y + n * n_species, n_species, w, mixed_w); w_row = mixed_w; }
        const T* b_row = b + species * WIDTH; if (species < 0) { mix(y + n * n_species, n_species, b, mixed_b); b_row = mixed_b; }
        for (int u = 0; u < 8; u += L) channels<L>(u, x + n * 32, a + n * 32, w_row, b_row, g + n * 32, dg + n * 32, dx + n * 32, dw + n * WIDTH);
    }
}
