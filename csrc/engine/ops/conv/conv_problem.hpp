// The description of a convolution in the manifest: blocks and paths, with their 3j symbols.
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

    // Reads the field "problem", from which kernels are also generated.
    static ConvDescription read(const Fields& fields, int outputs, int align);

private:
    // Adds a path and the nonzero terms of its 3j symbol [x][harmonic][out].
    void add_terms(GenericPath path, const std::vector<double>& symbol, double weight);
};

}  // namespace mdcg
