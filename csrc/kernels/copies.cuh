#include "kernels/common.cuh"
#include "kernels/copies.hpp"
#include "kernels/wraps.cuh"

// Where item i, in the caller's order, is in rows of WIDTH items in the order of the nodes.
template <int WIDTH>
INLINE Long place_in(const CopyArguments& a, Long first, Long i) {
    const Long item = i - first;
    return first + WIDTH * Long(a.node[item / WIDTH]) + item % WIDTH;
}

INLINE Long source_of(const CopyArguments& a, Long i) {
    if (a.node == nullptr) return i;
    if (i >= a.virials && i < a.virials + 9 * a.num_nodes) return place_in<9>(a, a.virials, i);
    if (i >= a.forces && i < a.forces + 3 * a.num_nodes) return place_in<3>(a, a.forces, i);
    if (i >= a.energies && i < a.energies + a.num_local) return place_in<1>(a, a.energies, i);
    return i;
}

extern "C" __global__ void copy_items(CopyArguments a) {
    const Long i = thread_number();
    if (i < a.count && a.placed.node != nullptr) {
        const Long atom = i / 3;
        const int k = int(i % 3);
        a.to[3 * Long(a.placed.node[atom]) + k] =
            unwrapped(a.from[i], a.placed.wraps + 3 * atom, a.placed.cell, k);
    } else if (i < a.count) {
        a.to[i] = a.from[source_of(a, i)];
    }
    if (i < a.num_cleared) a.cleared[i] = 0;
    if (i < a.num_marks) a.marks[i] = 0;
}
