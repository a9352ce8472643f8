// A neighbour list that Python threads take in turns.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>

#include "core/threads.hpp"
#include "engine/neighbors/neighbor_list.hpp"

class SharedList {
public:
    SharedList(double cutoff, double skin)
        : list_(std::make_unique<mdcg::NeighborList>(cutoff, skin)) {}
    ~SharedList() {
        if (mutex_.is_orphaned()) (void)list_.release();  // it may be half made
    }

    // Locks the list while this object exists. Waiting releases the interpreter's lock, which the
    // holder may need.
    class Held {
    public:
        explicit Held(SharedList& shared)
            : list_(*shared.list_), lock_(shared.mutex_, std::defer_lock) {
            const pybind11::gil_scoped_release release;
            lock_.lock();
        }
        mdcg::NeighborList* operator->() const { return &list_; }
        mdcg::NeighborList& operator*() const { return list_; }

    private:
        mdcg::NeighborList& list_;
        std::unique_lock<mdcg::ForkAwareMutex> lock_;
    };

private:
    std::unique_ptr<mdcg::NeighborList> list_;
    mdcg::ForkAwareMutex mutex_;
};
