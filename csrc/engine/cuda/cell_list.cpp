#include "engine/cuda/cell_list.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "core/integers.hpp"
#include "engine/edges/layout.hpp"
#include "engine/error.hpp"
#include "engine/neighbors/bins.hpp"

namespace mdcg {

namespace {

constexpr int CELL_THREADS = 256;
constexpr std::int64_t CELL_BINS_PER_ATOM = 32, FEW_CELL_BINS = 4096, TILE = 4;
constexpr std::int64_t MOST_BINS = (std::int64_t(1) << 31) - 64;  // numbers of bins have 32 bits
// Systems whose number of bins was reduced by more than this factor have large gaps; the host's
// list closes gaps.
constexpr double MOST_SHRUNK = 64.0;

static_assert(GROUPED_POINTS % DeviceEdges::GROUP == 0, "a division has whole groups");

}  // namespace

CudaCellList::CudaCellList(CudaKernels& kernels)
    : sort_(kernels),
      find_bins_(kernels.fixed("cell_list.cuh", "find_bins")),
      place_points_(kernels.fixed("cell_list.cuh", "place_points")),
      number_nodes_(kernels.fixed("cell_list.cuh", "number_nodes")),
      count_edges_(kernels.fixed("cell_list.cuh", "count_edges")),
      write_edges_(kernels.fixed("cell_list.cuh", "write_edges")),
      nodes_(kernels.device()),
      bins_(kernels.device()),
      host_(kernels.device()) {}

std::optional<CellArguments> CudaCellList::grid(const VerletSkin& watch, const ListPoints& points) {
    CellArguments a{};
    const double* const positions = points.positions;
    const double reach = watch.reach();
    Vector3 extent = watch.heights();
    bool open = false;
    for (std::size_t k = 0; k < 3; ++k) {
        a.periodic[k] = watch.periodic()[k];
        for (std::size_t c = 0; c < 3; ++c) a.inverse[3 * c + k] = watch.inverse()[c][k];
        open = open || !a.periodic[k];
    }
    constexpr double INFINITE = std::numeric_limits<double>::infinity();
    Vector3 low{INFINITE, INFINITE, INFINITE}, high{-INFINITE, -INFINITE, -INFINITE};
    for (std::int64_t i = 0; open && i < points.count; ++i) {
        const double* p = positions + 3 * i;
        for (std::size_t k = 0; k < 3; ++k) {
            const double along =
                p[0] * a.inverse[k] + p[1] * a.inverse[3 + k] + p[2] * a.inverse[6 + k];
            low[k] = std::min(low[k], along);
            high[k] = std::max(high[k], along);
        }
    }
    for (std::size_t k = 0; k < 3; ++k) {
        a.low[k] = a.periodic[k] ? 0 : low[k];
        if (!a.periodic[k]) extent[k] = high[k] - low[k];
    }
    const bool outer = !points.copies && points.num_local < points.count;
    const std::int64_t most = std::min(CELL_BINS_PER_ATOM * points.count + FEW_CELL_BINS,
                                       outer ? MOST_BINS / 2 : MOST_BINS);
    const Bins bins = choose_bins(extent, watch.periodic(), reach, most, TILE);
    // The host cannot make lists of copies.
    if (bins.shrunk > MOST_SHRUNK && !points.copies) return std::nullopt;
    a.num_bins = TILE * TILE * TILE;
    for (std::size_t k = 0; k < 3; ++k) {
        const auto count = static_cast<double>(bins.count[k]);
        a.scale[k] = a.periodic[k] ? count : extent[k] > 0 ? count / extent[k] : 0.0;
        a.bins[k] = narrow(bins.count[k]);
        a.tiles[k] = narrow((bins.count[k] + TILE - 1) / TILE);
        a.stencil[k] = narrow(bins.stencil[k]);
        a.num_bins *= a.tiles[k];
    }
    a.outer_bins = outer ? a.num_bins : 0;
    a.num_points = points.count;
    a.square = reach * reach;
    return a;
}

void CudaCellList::write_cell(const VerletSkin& watch, double* cell) {
    for (std::size_t k = 0; k < 3; ++k)
        for (std::size_t c = 0; c < 3; ++c)
            cell[3 * k + c] = watch.periodic()[k] ? watch.full()[k][c] : 0.0;
}

void CudaCellList::set_cell(const VerletSkin& watch, const DeviceStream& stream) {
    write_cell(watch, host_cell_.data());
    copy_to_device(cell_, host_cell_.data(), sizeof(host_cell_), stream);
}

void CudaCellList::make(const CellArguments& grid, const VerletSkin& watch,
                        const ListPoints& points, int num_types, const DeviceStream& stream,
                        DeviceEdges& graph, std::vector<std::int32_t>& node) {
    CellArguments a = grid;
    const bool copies = points.copies;
    const std::int64_t num_points = points.count, num_nodes = points.num_nodes;
    std::int32_t *sorted = nullptr, *spare_values = nullptr, *work = nullptr;
    std::uint32_t *sorted_keys = nullptr, *spare_keys = nullptr;
    const auto lay_out = [&](char* start) {
        Layout parts(start, DEVICE_ALIGNMENT);
        parts.take(a.given, 3 * num_points);
        parts.take(a.cell, 9);
        parts.take(a.given_wraps, 3 * num_points);
        parts.take(a.key, num_points);
        parts.take(a.places, 3 * num_points);
        parts.take(a.point_node, num_points);
        parts.take(a.point_image, copies ? num_points : 0);
        parts.take(sorted, num_points);
        parts.take(a.given_types, copies ? 0 : num_nodes);
        parts.take(sorted_keys, num_points);
        parts.take(spare_keys, num_points);
        parts.take(spare_values, num_points);
        parts.take(work, CudaSort::work_items(num_points));
        return parts.bytes();
    };
    nodes_.grow(lay_out(nullptr));
    lay_out(nodes_.as<char>());
    std::int32_t *types = nullptr, *point_node = nullptr, *point_image = nullptr;
    const auto lay_out_host = [&](char* start) {
        Layout parts(start, DEVICE_ALIGNMENT);
        parts.take(types, num_nodes);
        parts.take(point_node, copies ? num_points : 0);
        parts.take(point_image, copies ? num_points : 0);
        parts.take(a.order, copies ? 0 : num_points);
        return parts.bytes();
    };
    host_.grow(lay_out_host(nullptr));
    lay_out_host(host_.as<char>());
    std::copy_n(points.types, num_nodes, types);
    if (copies) {
        std::copy_n(points.node, num_points, point_node);
        std::copy_n(points.image, num_points, point_image);
    } else {
        a.point_image = nullptr;
    }
    const std::int64_t num_bins = a.num_bins + a.outer_bins;
    bins_.grow(4 * size(num_bins + 1));
    graph.reserve_nodes(points.num_local, num_nodes);
    a.num_nodes = num_nodes;
    a.host_given = points.positions;
    a.host_types = types;
    a.host_node = point_node;
    a.host_image = point_image;
    write_cell(watch, a.given_cell);
    if (copies) a.given_types = graph.types;
    a.sorted_key = sorted_keys;
    a.sorted = sorted;
    a.bin_ptr = bins_.as<std::int32_t>();
    a.num_local = points.num_local;
    a.group = graph.group;
    a.types = graph.types;
    a.row_ptr = graph.row_ptr;
    a.total = graph.total;
    cell_ = a.cell;
    placed_ = {a.point_node, a.given_wraps, cell_};

    const auto launch = [&](const CudaFunction& function, std::int64_t threads) {
        function.cover(stream, threads, CELL_THREADS, a);
    };
    launch(find_bins_, std::max<std::int64_t>(num_points, 9));  // also without points
    sort_.sort(stream, {num_points, CudaSort::bits(num_bins), a.key, nullptr, 0, sorted_keys,
                        sorted, spare_keys, spare_values, work});
    launch(place_points_, std::max<std::int64_t>(num_bins + 1, num_points));
    if (!copies)
        number_nodes_.launch(stream,
                             ceil_div(points.num_local, GROUPED_POINTS) +
                                 ceil_div(num_points - points.num_local, GROUPED_POINTS),
                             32, a);
    launch(count_edges_, 32 * num_points);
    sort_.sum(stream, graph.row_ptr, points.num_local, work);

    const auto write = [&] {
        if (!copies)
            graph.shifts = {nullptr, graph.image_rows, cell_, 1};
        else if (num_points > points.num_nodes)
            graph.shifts.image = graph.image_rows;  // rows of the caller's table of shifts
        a.sender = graph.sender;
        a.image = graph.image_rows;
        launch(write_edges_, 32 * num_points);
    };
    std::vector<std::int32_t> order = graph.take_rows(
        {copies ? nullptr : a.order, 0, watch.reach(), "the system has",
         copies ? "use more ranks" : "set memory to '92 %', and it is evaluated in domains", write},
        stream);
    graph.complete(points.types, num_types, true, stream);
    node = std::move(order);  // last: after an error the caller keeps the order of its old list
}

}  // namespace mdcg
