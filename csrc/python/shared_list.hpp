// A neighbour list that Python threads take in turns.
#pragma once

#include <pybind11/pybind11.h>

#include <mutex>

#include "engine/neighbors.hpp"

class SharedList {
public:
    SharedList(double cutoff, double skin) : list_(cutoff, skin) {}

    // The list, as long as this object is there. Nobody waits for it with the interpreter's lock,
    // which its holder may need.
    class Held {
    public:
        explicit Held(SharedList& shared)
            : list_(shared.list_), lock_(shared.mutex_, std::defer_lock) {
            const pybind11::gil_scoped_release release;
            lock_.lock();
        }
        mdcg::NeighborList* operator->() const { return &list_; }
        mdcg::NeighborList& operator*() const { return list_; }

    private:
        mdcg::NeighborList& list_;
        std::unique_lock<std::mutex> lock_;
    };

private:
    mdcg::NeighborList list_;
    std::mutex mutex_;
};
