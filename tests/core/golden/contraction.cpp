// mdcg VERSION, problem 21216b3c1fd07751, kernel contraction_forward
// HostContractionPlan x86-64-v3: 8 lanes, 4 nodes per task
// arg: n_rows, x, w, y, n_species, out
typedef float T;
#define L 8
#define MDCG_ITEM_BYTES 4
#define MDCG_VECTOR_BYTES 32
#define WIDTH 8
#define COLUMNS 512
// (host_prelude.hpp)

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


static __attribute__((noinline)) void group0(const V* x, const V* a, const T* c, const T* b, int64_t cs, const V* g, V* o, V* dx, T* dc, int64_t ds) {
    const V c0 = (V)(*(const VU*)(c + 0 * cs));
    const V x0 = (V)(x[0]);
    const V x1 = (V)(x[1]);
    const V x2 = (V)(x[2]);
    const V t0 = x0 * x0;
    const V t1 = x1 * x1;
    const V t2 = x2 * x2;
    const V t3 = t0 + t1 + t2;
    { V t = c0 * t3; o[0] = (VU)((V)o[0] + t); }
}
template <int N>
MDCG_INLINE void channels(int u, const T* px, const T* pa, const T* pc, const T* pb, const T* pg, T* po, T* pdx, T* pdc) {
    V x[3], a[3], g[1], o[1], dx[3];
    load_rows<N, 3>(px + u * 3, x);
    for (int m = 0; m < 1; ++m) o[m] = V{};
    constexpr bool WHOLE = N == L;
    alignas(64) T tc[WHOLE ? 1 : 1 * L], tb[WHOLE ? 1 : 1 * L], tdc[WHOLE ? 1 : 1 * L];
    const T* c = pc + u;
    const T* b = pb + u;
    T* dc = pdc + u;
    int64_t s = 8;
    if constexpr (!WHOLE) {
        for (int r = 0; r < 1; ++r) {
            *(V*)(tc + r * L) = load<N>(c + r * 8);
        }
        c = tc; b = tb; dc = tdc; s = L;
    }
    group0(x, a, c, b, s, g, o, dx, dc, s);
    store_strided<N, 1>(po + 0 + u * 1, o[0]);
}
extern "C" void mdcg_run(const int64_t* arg, int64_t task, char* scratch) {
    const int64_t n_rows = arg[0];
    T* const x = (T*)arg[1];
    T* const w = (T*)arg[2];
    T* const y = (T*)arg[3];
    const int64_t n_species = arg[4];
    T* const out = (T*)arg[5];
    T* const mixed_w = (T*)(scratch + 0);
    const int64_t last = (task + 1) * 4;
    for (int64_t n = task * 4; n < last && n < n_rows; ++n) {
        const int64_t species = only_species(y + n * n_species, n_species);
        const T* w_row = w + species * WIDTH; if (species < 0) { mix(y + n * n_species, n_species, w, mixed_w); w_row = mixed_w; }
        for (int u = 0; u < 8; u += L) channels<L>(u, x + n * 24, (const T*)nullptr, w_row, (const T*)nullptr, (const T*)nullptr, out + n * 8, (T*)nullptr, (T*)nullptr);
    }
}
