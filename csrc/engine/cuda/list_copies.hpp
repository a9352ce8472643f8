// What devices make lists of where there are ghosts, or copies of nodes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cuda/cell_list.hpp"
#include "engine/graph.hpp"
#include "engine/neighbors/verlet_skin.hpp"

namespace mdcg {

// Keeps the places that the last list was made of: other types need it again.
class ListCopies {
public:
    // Whether a list is to be made. Throws EngineError for wrong copies, or where the list is held
    // for another system than that of the list; GeometryError for positions.
    bool take(const System& system, double r_max);
    void forget() { watch_.reset(); }
    bool taken() const { return watch_ != nullptr; }

    const VerletSkin& watch() const { return *watch_; }
    // As long as this object and the system stay.
    ListPoints points(const System& system) const;

private:
    void check(const System& system) const;

    std::unique_ptr<VerletSkin> watch_;
    std::int64_t num_local_ = 0, num_nodes_ = 0, num_images_ = 0;
    std::vector<double> positions_;  // [points][3]
    std::vector<std::int32_t> node_, image_;
};

}  // namespace mdcg
