#include "engine/cuda/device_points.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "core/integers.hpp"
#include "engine/edges/layout.hpp"
#include "engine/error.hpp"

namespace mdcg {

namespace {

constexpr const char* POINTS_TEXT = "points.cuh";
constexpr int GATHER_THREADS = 256;

}  // namespace

DevicePoints::DevicePoints(CudaKernels& kernels)
    : place_(kernels.fixed(POINTS_TEXT, "place_points")),
      gather_(kernels.fixed(POINTS_TEXT, "gather_points")),
      gather_slopes_(kernels.fixed(POINTS_TEXT, "gather_point_slopes")),
      memory_(kernels.device()) {}

void DevicePoints::upload(const Points& points, const double* positions, std::int64_t num_local,
                          double slack, const DeviceStream& stream) {
    count_ = points.count();
    if (count_ > std::numeric_limits<std::int32_t>::max())
        bad_argument("there are " + std::to_string(count_) +
                     " atoms and images within the cutoff of the dispersion, expected fewer than "
                     "2^31: use more processes");
    int *node = nullptr, *own = nullptr, *types = nullptr, *first = nullptr;
    double* offset = nullptr;
    const auto firsts = static_cast<std::int64_t>(points.first().size());
    const auto slots = static_cast<std::int64_t>(points.types().size());
    std::size_t given = 0;  // bytes that the host writes
    const auto lay_out = [&](char* start) {
        Layout parts(start, DEVICE_ALIGNMENT);
        parts.take(node, count_);
        parts.take(offset, 3 * count_);
        parts.take(own, num_local);
        parts.take(types, slots);
        parts.take(first, firsts);
        given = parts.bytes();
        if (start != nullptr && start == host_.data()) return given;
        for (double*& axis : axes_) parts.take(axis, count_);
        parts.take(gathered_, MAX_REFERENCES * count_);
        parts.take(kept_, 64 * num_local);
        return parts.bytes();
    };
    const std::size_t all = lay_out(nullptr);
    stream.synchronize();
    memory_.grow(std::max<std::size_t>(all, 1));
    host_.resize(given);
    lay_out(host_.data());
    for (std::int64_t p = 0; p < count_; ++p) {
        node[p] = points.node()[size(p)];
        for (std::size_t k = 0; k < 3; ++k)
            offset[size(3 * p) + k] =
                points.axis(k)[p] -
                positions[3 * static_cast<std::int64_t>(node[p]) + static_cast<std::int64_t>(k)];
    }
    std::copy(points.own().begin(), points.own().end(), own);
    std::copy(points.types().begin(), points.types().end(), types);
    for (std::int64_t i = 0; i < firsts; ++i) first[i] = narrow(points.first()[size(i)]);
    if (given > 0) memory_.upload(host_.data(), given, stream);
    lay_out(memory_.as<char>());
    node_ = node;
    offset_ = offset;
    set_ = {axes_[0], axes_[1], axes_[2], own, types, first, {}, {}, {}, slack, {}, narrow(slots)};
    for (std::size_t k = 0; k < 3; ++k) {
        set_.origin[k] = points.origin()[k];
        set_.edge[k] = points.edge()[k];
        set_.inverse_edge[k] = 1 / points.edge()[k];
        set_.boxes[k] = static_cast<int>(points.boxes()[k]);
    }
    stream.synchronize();
}

void DevicePoints::place(const double* positions, const DeviceStream& stream) const {
    const PlaceArguments arguments{positions, node_, offset_, axes_[0], axes_[1], axes_[2], count_};
    place_.cover(stream, count_, GATHER_THREADS, arguments);
}

template <typename T>
const double* DevicePoints::gather(const T* rows, int numbers, int width,
                                   const DeviceStream& stream) const {
    const GatherPointsArguments<T> arguments{rows, node_, gathered_, count_, numbers, width};
    gather_.cover(stream, count_, GATHER_THREADS, arguments);
    return gathered_;
}
template const double* DevicePoints::gather(const float*, int, int, const DeviceStream&) const;
template const double* DevicePoints::gather(const double*, int, int, const DeviceStream&) const;

const double* DevicePoints::gather_slopes(const double* slopes, int width,
                                          const DeviceStream& stream) const {
    const GatherPointsArguments<double> arguments{slopes, node_, gathered_, count_, 1, width};
    gather_slopes_.cover(stream, count_, GATHER_THREADS, arguments);
    return gathered_;
}

}  // namespace mdcg
