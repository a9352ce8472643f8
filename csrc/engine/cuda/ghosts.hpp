// Exchange of rows with other processes. Only rows that are sent or received are copied: through
// the host, or directly from device to device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/device.hpp"
#include "engine/communicator.hpp"
#include "engine/cuda/device_edges.hpp"
#include "engine/cuda/halves.hpp"
#include "engine/cuda/kernels.hpp"
#include "engine/cuda/peer_windows.hpp"

namespace mdcg {

template <typename T>
class CudaGhosts {
public:
    explicit CudaGhosts(CudaKernels& kernels);

    // To be called for every new list of edges, before its first exchange; `width`: items of the
    // longest row. Collective if rows go from device to device. Throws EngineError if the
    // communicator names nodes that are not local.
    void on_new_list(Communicator& communicator, int width, const DeviceEdges& graph,
                     const DeviceStream& stream);
    bool has_list() const { return listed_; }
    void forget_list() { listed_ = false; }

    // `rows` is on the device and has a row of `width` items, a multiple of 16 bytes, for every
    // node. Both wait for the stream, but not for what they enqueue after the exchange. In halves,
    // the first one enqueues what is sent, on a stream of its own, and the second one waits for
    // that stream alone. Between them, rows of ghosts must not be used in the forward pass, and
    // must not be written in the backward pass.
    void forward(Communicator& communicator, T* rows, int width, const DeviceEdges& graph,
                 const DeviceStream& stream, Half half = Half::whole);
    void reverse(Communicator& communicator, T* rows, int width, const DeviceEdges& graph,
                 const DeviceStream& stream, Half half = Half::whole);

    // Bytes copied between device and host, or from other devices, since the last call.
    std::size_t take_copied();
    bool from_device_to_device() const { return windows_ != nullptr; }
    std::size_t bytes() const {  // on the device
        return lists_.bytes() + packed_.bytes() + (windows_ ? windows_->bytes() : 0);
    }

private:
    void take_sent(const Communicator& communicator, const DeviceEdges& graph,
                   const DeviceStream& stream);
    void check_peers(const Peers& peers, const DeviceEdges& graph) const;
    void from_peers(Communicator& communicator, char* to, bool ghosts, std::size_t row,
                    const DeviceStream& stream);
    void reserve(int width, const DeviceEdges& graph, const DeviceStream& stream);
    void to_host(void* target, const void* source, std::size_t bytes, const DeviceStream& stream);
    void to_device(void* target, const void* source, std::size_t bytes, const DeviceStream& stream);

    CudaFunction gather_, add_;
    bool listed_ = false;
    bool by_rows_ = false;  // else all rows pass through the host
    std::int64_t num_sent_ = 0, num_owners_ = 0;
    // On the device: node_ [num_sent] nodes of sent rows; owner_ [num_owners] each of these nodes
    // once; place_ from first_[i] to first_[i + 1]: the rows of owner_[i].
    DeviceMemory lists_, packed_;
    const std::int32_t *node_ = nullptr, *owner_ = nullptr, *first_ = nullptr, *place_ = nullptr;
    PinnedMemory sent_, ghosts_;
    std::vector<std::int32_t> list_;
    std::size_t copied_ = 0;
    int device_;
    std::unique_ptr<PeerWindows> windows_;  // null: through the host
    DeviceStream copies_;                   // copies of exchanges in halves
    DeviceEvent written_, arrived_;         // what is sent; what others have sent
};

}  // namespace mdcg
