// Where kernels find the table of a pair of types, and how its columns are stored.
#pragma once

namespace mdcg {

// The table of a pair of types. Interval coordinate of r: sqrt(r) * inverse_step + offset.
struct TableEntry {
    double inverse_step, offset;
    int row, intervals;  // first row of the pair's table (-1: there is none); number of intervals
};
static_assert(sizeof(TableEntry) == 24);

// Coefficients of the highest powers that are stored and evaluated in single precision.
// They are small, and the error that this makes is measured when a table is built.
template <typename T>
constexpr int TABLE_SINGLES = sizeof(T) == 8 ? 4 : 0;
// Items of a column in a row; two single coefficients are one.
template <typename T>
constexpr int table_items(int degree) {
    return degree + 1 - TABLE_SINGLES<T> / 2;
}

}  // namespace mdcg
