// What operations on charges or multipoles of a whole system declare.
#pragma once

#include <cstdint>

#include "engine/communicator.hpp"
#include "engine/op.hpp"

namespace mdcg {

struct WaveSpec : OpSpec {
    explicit WaveSpec(const LayerEntry& given) : OpSpec(given) {
        forward_space = IterationSpace::system;
    }

    // Whether the sum goes over waves. Throws EngineError unless the system is periodic in three
    // directions or in none.
    bool is_periodic(const double* cell, const bool* periodic) const;
    // Throws EngineError, on all processes, if atoms of an open system are on several of them.
    void expect_one_process(Communicator* communicator, std::int64_t num_local) const;

protected:
    double length(const char* key) const { return length(fields, key); }
    static double length(const Fields& from, const char* key);
    // Whether the field `own_part` removes the interaction of each charge with itself.
    bool removes_own_part() const;
};

}  // namespace mdcg
