// A convolution as the manifest describes it: blocks, paths and nonzeros.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/backend/cpu/edge_kernels.hpp"
#include "engine/edges/radial_table.hpp"
#include "engine/package/fields.hpp"
#include "engine/rows.hpp"

namespace mdcg {

struct ConvDescription {
    Rows x, out;
    int l_max = 0;
    WeightColumns weights;
    std::vector<GenericPath> paths;
    std::vector<GenericPair> pairs;
    std::vector<GenericTerm<double>> terms;

    // Of the fields "problem", "nonzeros" (int32 [n][4]: path, and components a of x, b of the
    // harmonic, c of out, counted inside their blocks) and "values" (float64 [n]: 3j symbol times
    // path weight).
    static ConvDescription read(const Fields& fields, int outputs, int align);
};

}  // namespace mdcg
