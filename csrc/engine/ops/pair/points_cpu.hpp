// What operations on points share on CPUs.
#pragma once

#include <vector>

#include "core/integers.hpp"
#include "core/interrupt.hpp"
#include "core/threads.hpp"
#include "engine/backend/cpu/parallel.hpp"
#include "engine/backend/cpu/simd.hpp"
#include "engine/cpu_op.hpp"
#include "engine/graph.hpp"
#include "engine/neighbors/points.hpp"

namespace mdcg {

// Calls body(node, visit) for local nodes, in turns of threads; visit(run_body) calls
// run_body(type, first point, run) for the runs of points within the cutoff.
template <typename T, typename Body>
void each_atom(const Worker<T>& worker, Range nodes, double cutoff, const Body& body) {
    const Points& points = *worker.points;
    const auto run_atom = [&](std::int64_t node) {
        const Vector3 at = points.position(node);
        body(node, [&](const auto& run_body) {
            points.visit(at, cutoff, [&](int type, std::int64_t begin, std::int64_t end) {
                run_body(type, begin,
                         PairRun{end - begin,
                                 points.axis(0) + begin,
                                 points.axis(1) + begin,
                                 points.axis(2) + begin,
                                 {at[0], at[1], at[2]},
                                 cutoff * cutoff});
            });
        });
    };
    FirstError error;
    share_in_turns(worker.threads, nodes.end - nodes.begin, 8, [&](std::int64_t i, int thread) {
        if (error.failed()) return;
        try {
            if (thread == 0) poll_interrupt();
            run_atom(nodes.begin + i);
        } catch (...) {
            error.keep();
        }
    });
    error.rethrow();
}

// The first `count` numbers of rows of nodes, number by number, for every point.
template <typename T, typename Number>
void gather_points(const Worker<T>& worker, std::int64_t count, std::int64_t stride,
                   const Number* rows, std::vector<std::vector<double>>& found) {
    const std::vector<std::int32_t>& node = worker.points->node();
    found.resize(size(count));
    for (std::int64_t b = 0; b < count; ++b) {
        found[size(b)].assign(node.size() + size(Points::PADDING), 0.0);
        double* const out = found[size(b)].data();
        share(worker.threads, worker.points->count(), [&](std::int64_t p, int) {
            out[p] =
                static_cast<double>(rows[static_cast<std::int64_t>(node[size(p)]) * stride + b]);
        });
    }
}

template <typename T>
void add_force(const Worker<T>& worker, std::int64_t node, const PairForce& force) {
    for (int d = 0; d < 3; ++d) worker.forces[3 * node + d] -= force.force[d];
    for (int i = 0; i < 6; ++i) worker.virials[6 * node + i] -= force.virial[i];
}

}  // namespace mdcg
