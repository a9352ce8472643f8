R"CUDA(
// Layers that treat every node by itself. Most kernels give a warp to a node; its lanes take 16
// bytes each. Nothing is declared as not overlapping: a layer may read one value twice.

constexpr int LANE_ITEMS = 16 / sizeof(T);
struct alignas(16) Pack {
    T v[LANE_ITEMS];
};
#define EACH_ITEM for (int i = 0; i < LANE_ITEMS; ++i)

INLINE Pack load(const T* p) { return *(const Pack*)p; }
INLINE void put(T* p, Pack a) { *(Pack*)p = a; }
INLINE void put_or_add(T* p, Pack a, int add) {
    if (add) {
        const Pack old = load(p);
#pragma unroll
        EACH_ITEM a.v[i] += old.v[i];
    }
    put(p, a);
}
INLINE Pack times(T s, Pack a) {
#pragma unroll
    EACH_ITEM a.v[i] *= s;
    return a;
}
INLINE Pack times(Pack a, Pack b) {
#pragma unroll
    EACH_ITEM a.v[i] *= b.v[i];
    return a;
}

INLINE Long warp_number() { return thread_number() / 32; }
INLINE int lane_number() { return threadIdx.x % 32; }
#define EACH_PACK(width) \
    for (int j = lane_number() * LANE_ITEMS; j < int(width); j += 32 * LANE_ITEMS)

// out = table[type], and out (+)= factor[type] * x; one row or factor for all where not `typed`.
struct TypeRows {
    T* out;
    const T* table;
    const int* types;
    Long count;
    int width;
};
extern "C" __global__ void __launch_bounds__(256) type_rows(const TypeRows p) {
    const Long n = warp_number();
    if (n >= p.count) return;
    const T* const row = p.table + Long(p.types[n]) * p.width;
    EACH_PACK(p.width) put(p.out + n * p.width + j, load(row + j));
}

struct Scale {
    const T* x;
    T* out;
    const T* factor;
    const int* types;
    Long count;
    int width, typed, add;
};
extern "C" __global__ void __launch_bounds__(256) scale(const Scale p) {
    const Long n = warp_number();
    if (n >= p.count) return;
    const T factor = p.factor[p.typed ? p.types[n] : 0];
    EACH_PACK(p.width) {
        const Long at = n * p.width + j;
        put_or_add(p.out + at, times(factor, load(p.x + at)), p.add);
    }
}

// out = x / (density * beta + alpha)
struct Normalize {
    const T* x;
    const T* density;
    T* out;
    const T* g;
    T* dx;         // null: not wanted
    T* d_density;  // null: not wanted
    Long count;
    int width, density_width, add_x, add_density;
    double alpha, beta;
};
INLINE T normalizer(const Normalize& p, Long n) {
    return T(1) / (T(p.beta) * p.density[n * p.density_width] + T(p.alpha));
}
extern "C" __global__ void __launch_bounds__(256) normalize_forward(const Normalize p) {
    const Long n = warp_number();
    if (n >= p.count) return;
    const T s = normalizer(p, n);
    EACH_PACK(p.width) {
        const Long at = n * p.width + j;
        put(p.out + at, times(s, load(p.x + at)));
    }
}
extern "C" __global__ void __launch_bounds__(256) normalize_backward(const Normalize p) {
    const Long n = warp_number();
    if (n >= p.count) return;
    const T s = normalizer(p, n);
    T dot = T(0);
    EACH_PACK(p.width) {
        const Long at = n * p.width + j;
        const Pack g = load(p.g + at), x = load(p.x + at);
#pragma unroll
        EACH_ITEM dot += x.v[i] * g.v[i];
        if (p.dx != nullptr) put_or_add(p.dx + at, times(s, g), p.add_x);
    }
    if (p.d_density == nullptr) return;
    for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, step);
    __syncwarp();
    for (int j = lane_number(); j < p.density_width; j += 32) {
        T* const d = p.d_density + n * p.density_width + j;
        const T old = p.add_density ? *d : T(0);
        *d = j == 0 ? old - T(p.beta) * s * s * dot : old;
    }
}

// out = x * y
struct ItemProduct {
    const T* x;
    const T* y;
    T* out;
    const T* g;
    T* dx;  // null: not wanted
    T* dy;
    Long items;
    int add_x, add_y;
};
extern "C" __global__ void __launch_bounds__(256) product_forward(const ItemProduct p) {
    const Long at = thread_number() * LANE_ITEMS;
    if (at < p.items) put(p.out + at, times(load(p.x + at), load(p.y + at)));
}
extern "C" __global__ void __launch_bounds__(256) product_backward(const ItemProduct p) {
    const Long at = thread_number() * LANE_ITEMS;
    if (at >= p.items) return;
    const Pack g = load(p.g + at), x = load(p.x + at), y = load(p.y + at);
    if (p.dx != nullptr) put_or_add(p.dx + at, times(g, y), p.add_x);
    if (p.dy != nullptr) put_or_add(p.dy + at, times(g, x), p.add_y);
}

// sum = (sum +) all terms; back: every term (+)= sum.
constexpr int MAX_TERMS = 8;
struct Sum {
    T* sum;
    T* term[MAX_TERMS];
    int add[MAX_TERMS];
    Long items;
    int num_terms, add_sum;
};
extern "C" __global__ void __launch_bounds__(256) sum_forward(const __grid_constant__ Sum p) {
    const Long at = thread_number() * LANE_ITEMS;
    if (at >= p.items) return;
    Pack sum = p.add_sum ? load(p.sum + at) : Pack{};
    for (int k = 0; k < p.num_terms; ++k) {
        const Pack term = load(p.term[k] + at);
#pragma unroll
        EACH_ITEM sum.v[i] += term.v[i];
    }
    put(p.sum + at, sum);
}
extern "C" __global__ void __launch_bounds__(256) sum_backward(const __grid_constant__ Sum p) {
    const Long at = thread_number() * LANE_ITEMS;
    if (at >= p.items) return;
    const Pack g = load(p.sum + at);
    for (int k = 0; k < p.num_terms; ++k) put_or_add(p.term[k] + at, g, p.add[k]);
}

// energy += scale[type] * x[channel] + shift[type]
struct Energy {
    const T* x;
    T* dx;
    double* energies;
    const double* scale;  // [types]
    const double* shift;
    const int* types;
    Long count;
    int width, channel, add;
};
extern "C" __global__ void __launch_bounds__(256) energy_forward(const Energy p) {
    const Long n = thread_number();
    if (n >= p.count) return;
    const int type = p.types[n];
    p.energies[n] += p.scale[type] * double(p.x[n * p.width + p.channel]) + p.shift[type];
}
extern "C" __global__ void __launch_bounds__(256) energy_backward(const Energy p) {
    const Long n = warp_number();
    if (n >= p.count) return;
    for (int j = lane_number(); j < p.width; j += 32) {
        T* const d = p.dx + n * p.width + j;
        const T g = j == p.channel ? T(p.scale[p.types[n]]) : T(0);
        *d = p.add ? *d + g : g;
    }
}
)CUDA"
