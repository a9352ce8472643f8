// Arguments of kernels/points.cuh.
#pragma once

#include "kernels/pair_functions.hpp"
#include "kernels/row_functions.hpp"

namespace mdcg {

// Block size of the kernels that visit points; a block has a node.
constexpr int POINT_WARPS = 4, POINT_THREADS = 32 * POINT_WARPS;

// Points sorted by type and box; boxes along x follow each other. Boxes were found when the list
// was made; `slack` is how far points may have left them since.
struct PointSet {
    const double* x;       // [count] Å
    const double* y;       // [count]
    const double* z;       // [count]
    const int* own;        // [num_local] the point that is the node itself
    const int* slot_type;  // [slots] the types that occur
    const int* first;      // [slots][boxes z][y][x + 1] first point of a box
    double origin[3], edge[3], inverse_edge[3];
    double slack;
    int boxes[3], slots;
};
static_assert(sizeof(PointSet) == 144);

// x, y, z = position of the node + offset.
struct PlaceArguments {
    const double* positions;  // [num_nodes][3]
    const int* node;          // [count]
    const double* offset;     // [count][3] Å
    double* x;                // [count] Å
    double* y;                // [count]
    double* z;                // [count]
    Long count;
};
static_assert(sizeof(PlaceArguments) == 56);

// out[number][point] = rows[node of the point][number].
template <typename T>
struct GatherPointsArguments {
    const T* rows;    // [num_nodes][width]
    const int* node;  // [count]
    double* out;      // [numbers][count]
    Long count;
    int numbers, width;
};
static_assert(sizeof(GatherPointsArguments<float>) == 40);

template <typename T>
struct CoordinationArguments {
    PointSet points;
    const double* radii;   // [T] Å
    const int* types;      // [num_local]
    T* out;                // [num_local][width]
    const double* slopes;  // [points] derivatives by coordination numbers
    double* forces;        // [num_local][3], added to
    double* virials;       // [num_local][6], added to
    double steepness, cutoff;
    int width, unused;
};
static_assert(sizeof(CoordinationArguments<double>) == 216);

template <typename T>
struct DispersionArguments {
    PointSet points;
    const T* rows;               // [num_local][width] weights
    const double* weights;       // [MAX_REFERENCES][points]
    const double* c6;            // [T][MAX_REFERENCES][T][MAX_REFERENCES]
    const PairDamping* damping;  // [T][T]
    const int* types;            // [num_local]
    double* energies;            // [num_local], added to
    T* gradient;                 // [num_local][width] of rows, written
    double* forces;              // [num_local][3], added to
    double* virials;             // [num_local][6], added to
    double cutoff;
    Long count;
    int num_types, width;
};
static_assert(sizeof(DispersionArguments<double>) == 240);

// Copies column 0 of `rows` to column 0 of `out`, and sets the other columns of `out` to zero.
template <typename T>
struct ColumnArguments {
    const T* rows;  // [count][width]
    double* out;    // [count][out_width]
    Long count;
    int width, out_width;
};
static_assert(sizeof(ColumnArguments<double>) == 32);

}  // namespace mdcg
