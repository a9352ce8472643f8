// The functions of RowKernels, compiled once per instruction set like dense_kernels.cpp.
#include "engine/backend/cpu/lanes.hpp"

// NOTES: included after lanes.hpp, whose exponential() its functions call.
#include "engine/backend/cpu/row_kernels.hpp"

namespace mdcg {
namespace {

// A thread computes a row, one vector at a time. Rows are padded to whole vectors.
template <typename T>
struct VectorRow {
    using V = Vector<T>;
    static constexpr int CHANNELS = 1;
    Long number;

    struct Sum {
        V value;
        void add(V a) { value += a; }
    };
    V load(const T* p) const { return mdcg::load<V>(p); }
    void put(T* p, V a, int add = 0) const { store(p, add ? load(p) + a : a); }
    template <typename Body>
    void each(int width, const Body& body) const {
        for (int j = 0; j < width; j += lanes<T>) body(j);
    }
    template <typename Body>
    void each_item(int width, const Body& body) const {
        for (int j = 0; j < width; ++j) body(j);
    }
    T total(Sum sum) const { return mdcg::sum(sum.value); }
};

// Consecutive channels, one for each lane. Lanes outside `begin` to `end` are zero.
template <typename T>
struct ChannelRow {
    using Value = Vector<T>;
    static constexpr int CHANNELS = lanes<T>;
    Long number;  // number of the first channel

    Value load(const T* p) const { return mdcg::load<Value>(p); }
    Value load(const T* p, int begin, int end) const {
        if (begin <= 0 && end >= CHANNELS) return load(p);
        Value some{};
        for (int i = begin > 0 ? begin : 0; i < CHANNELS && i < end; ++i) some[i] = p[i];
        return some;
    }
    Value keep(Value value, int end) const {
        for (int i = end > 0 ? end : 0; i < CHANNELS; ++i) value[i] = T(0);
        return value;
    }
    void put(T* p, Value value) const { store(p, value); }
};
template <typename T>
using WarpRow = VectorRow<T>;
template <typename T>
using ThreadRow = VectorRow<T>;

#define MDCG_ROW_LOOP(NAME, ARGUMENTS, MEMBER, ROW)                               \
    template <typename T>                                                         \
    void NAME(const void* given) {                                                \
        const auto& p = *static_cast<const ARGUMENTS<T>*>(given);                 \
        for (Long n = 0; n < p.count; n += ROW<T>::CHANNELS) p.MEMBER(ROW<T>{n}); \
    }
MDCG_ROW_FUNCTIONS(MDCG_ROW_LOOP)

}  // namespace

template <int level, typename T>
RowKernels row_kernels() {
#define MDCG_ROW_POINTER(NAME, ARGUMENTS, MEMBER, ROW) &NAME<T>,
    return {{MDCG_ROW_FUNCTIONS(MDCG_ROW_POINTER)}};
}
template RowKernels row_kernels<MDCG_SIMD_LEVEL, float>();
template RowKernels row_kernels<MDCG_SIMD_LEVEL, double>();

}  // namespace mdcg
