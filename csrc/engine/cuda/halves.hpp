// Stages in halves, for exchanges that overlap with operations.
#pragma once

namespace mdcg {

// An operation on edges runs in halves while rows of ghosts travel: one half for the receivers that
// receive nothing from ghosts (DeviceEdges::first_inner), one for the others. The first half of an
// exchange enqueues the copies of what it sends, the second one communicates.
enum class Half : char { whole, first, second };

}  // namespace mdcg
