// Arguments of kernels/nodes.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

// Scalars go through activations; other blocks are multiplied with activations of scalars.
struct GateBlock {
    int offset, stride, mul, dim;
    int first_use, last_use;  // of x: places in the list of uses
    int entry;                // of out: what writes it
};
static_assert(sizeof(GateBlock) == 28);

// What becomes of a block: scalars have no gate.
struct GateEntry {
    int in, out, gate;  // numbers of blocks; gate -1: none
    int gate_offset;
    int activation, unused;
    double factor;
};
static_assert(sizeof(GateEntry) == 32);

template <typename T>
struct GateArguments {
    const T* x;
    T* out;
    const T* g;
    T* dx;
    const GateBlock* x_blocks;
    const GateBlock* out_blocks;
    const GateEntry* entries;
    const int* uses;     // numbers of entries, by block of x
    const int* columns;  // block of each channel, padding included
    int threads;         // nodes times channels
    int channels, x_width, out_width, add;
};
static_assert(sizeof(GateArguments<float>) == 96 && sizeof(GateArguments<double>) == 96);

// out = table[type], and out (+)= factor[type] * x; one row or factor for all where not `typed`.
template <typename T>
struct TypeRowsArguments {
    T* out;
    const T* table;
    const int* types;
    Long count;
    int width;
};
static_assert(sizeof(TypeRowsArguments<float>) == 40 && sizeof(TypeRowsArguments<double>) == 40);

template <typename T>
struct ScaleArguments {
    const T* x;
    T* out;
    const T* factor;
    const int* types;
    Long count;
    int width, typed, add;
};
static_assert(sizeof(ScaleArguments<float>) == 56 && sizeof(ScaleArguments<double>) == 56);

// out = x / (density * beta + alpha)
template <typename T>
struct NormalizeArguments {
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
static_assert(sizeof(NormalizeArguments<float>) == 88 && sizeof(NormalizeArguments<double>) == 88);

// out = x * y
template <typename T>
struct ProductArguments {
    const T* x;
    const T* y;
    T* out;
    const T* g;
    T* dx;  // null: not wanted
    T* dy;
    Long items;
    int add_x, add_y;
};
static_assert(sizeof(ProductArguments<float>) == 64 && sizeof(ProductArguments<double>) == 64);

// sum = (sum +) all terms; back: every term (+)= sum.
constexpr int SUM_TERMS = 8;  // of a launch
template <typename T>
struct SumArguments {
    T* sum;
    T* term[SUM_TERMS];
    int add[SUM_TERMS];
    Long items;
    int num_terms, add_sum;
};
static_assert(sizeof(SumArguments<float>) == 120 && sizeof(SumArguments<double>) == 120);

// energy += scale[type] * x[channel] + shift[type]
template <typename T>
struct EnergyArguments {
    const T* x;
    T* dx;
    double* energies;
    const double* scale;  // [types]
    const double* shift;
    const int* types;
    const double* weights;  // of the nodes' energies in the sum that is derived; null: ones
    Long count;
    int width, channel, add;
};
static_assert(sizeof(EnergyArguments<float>) == 80 && sizeof(EnergyArguments<double>) == 80);

template <typename T>
struct GatherArguments {
    const T* rows;
    T* out;           // [count]
    const int* node;  // [count]; -1: zeros
    Long count;
    int width;
};
static_assert(sizeof(GatherArguments<float>) == 40 && sizeof(GatherArguments<double>) == 40);

// What came back for one node: added in the order of the list.
template <typename T>
struct AddArguments {
    T* rows;
    const T* received;
    const int *node, *first, *place;  // [count], [count + 1], rows of `received`
    Long count;
    int width;
};
static_assert(sizeof(AddArguments<float>) == 56 && sizeof(AddArguments<double>) == 56);

}  // namespace mdcg
