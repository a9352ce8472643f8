#include "engine/cuda/list_copies.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>

#include "core/integers.hpp"
#include "engine/error.hpp"

namespace mdcg {

void ListCopies::check(const System& system) const {
    check_range(system.copy_node, system.num_copies, system.num_nodes, "copy_node");
    check_range(system.copy_image, system.num_copies, system.num_images, "copy_image");
    if (system.num_images > 0 && !std::all_of(system.image_shifts, system.image_shifts + 3,
                                              [](double shift) { return shift == 0; }))
        bad_argument(
            "make_edges is set, and the first row of image_shifts is not zeros, expected those of "
            "the nodes themselves");
}

bool ListCopies::take(const System& system, double r_max) {
    const std::int64_t nodes = system.num_nodes, points = nodes + system.num_copies;
    if (system.same_edges) {
        if (watch_ == nullptr || system.num_local != num_local_ || nodes != num_nodes_ ||
            system.num_images != num_images_ || size(points) != node_.size())
            bad_argument("the system has " + std::to_string(nodes) + " nodes and " +
                         std::to_string(system.num_copies) +
                         " copies, but mdcg_system.list names the list of the last call, which had "
                         "other numbers of them: set list.edges to 0 when they change");
        return false;
    }
    forget();
    check(system);
    positions_.assign(system.positions, system.positions + 3 * nodes);
    positions_.resize(size(3 * points));
    node_.resize(size(points));
    std::iota(node_.begin(), node_.begin() + nodes, 0);
    std::copy_n(system.copy_node, system.num_copies, node_.begin() + nodes);
    image_.assign(size(points), 0);
    std::copy_n(system.copy_image, system.num_copies, image_.begin() + nodes);
    for (std::int64_t c = nodes; c < points; ++c)
        for (std::int64_t d = 0; d < 3; ++d)
            positions_[size(3 * c + d)] = system.positions[3 * node_[size(c)] + d] -
                                          system.image_shifts[3 * image_[size(c)] + d];
    auto watch = std::make_unique<VerletSkin>(r_max, system.skin);
    try {
        watch->needs_rebuild(points, positions_.data(), nullptr, nullptr);
    } catch (const GeometryError& error) {  // of a node or a copy: name the node
        throw GeometryError(error.sentence.named({node_.begin(), node_.end()}));
    }
    watch_ = std::move(watch);
    num_local_ = system.num_local;
    num_nodes_ = nodes;
    num_images_ = system.num_images;
    return true;
}

ListPoints ListCopies::points(const System& system) const {
    return {static_cast<std::int64_t>(node_.size()),
            positions_.data(),
            system.types,
            num_local_,
            num_nodes_,
            true,
            node_.data(),
            image_.data()};
}

}  // namespace mdcg
