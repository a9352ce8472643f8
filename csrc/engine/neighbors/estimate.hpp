// How many neighbours the atoms of a system have, without a list.
#pragma once

#include "engine/graph.hpp"

namespace mdcg {

// Estimates the neighbours of an atom within a reach (Å), on average, from the numbers of atoms in
// bins. Throws GeometryError for wrong positions.
double estimate_neighbors(const CellSystem& system, double reach);

}  // namespace mdcg
