// Points of lists that devices make for systems with ghosts or copies of nodes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cuda/cell_list.hpp"
#include "engine/graph.hpp"
#include "engine/neighbors/verlet_skin.hpp"

namespace mdcg {

// Keeps the points of the last list, because a change of types needs a new list of the same points.
class ListCopies {
public:
    // Returns whether a new list must be made. Throws EngineError for wrong copies, or if the
    // system differs from the one that the list was made for; GeometryError for wrong positions.
    bool take(const System& system, double r_max);
    void forget() { watch_.reset(); }
    bool taken() const { return watch_ != nullptr; }

    const VerletSkin& watch() const { return *watch_; }
    // Valid as long as this object and the system.
    ListPoints points(const System& system) const;

private:
    void check(const System& system) const;

    std::unique_ptr<VerletSkin> watch_;
    std::int64_t num_local_ = 0, num_nodes_ = 0, num_images_ = 0;
    std::vector<double> positions_;  // [points][3]
    std::vector<std::int32_t> node_, image_;
};

}  // namespace mdcg
