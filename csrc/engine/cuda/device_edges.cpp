#include "engine/cuda/device_edges.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>

#include "core/integers.hpp"
#include "engine/edges/layout.hpp"
#include "engine/error.hpp"
#include "engine/neighbors/geometry_check.hpp"
#include "kernels/edge_lists.hpp"

namespace mdcg {

namespace {

constexpr int EDGE_THREADS = 256;

// Temporary memory for making a list of `items` edges or nodes.
struct Workspace {
    std::uint32_t *sorted_keys, *spare_keys;
    std::int32_t *spare_values, *edge_of_place, *runs, *row_runs, *work;
    std::size_t bytes;

    Workspace(char* start, std::int64_t items) {
        Layout parts(start, DEVICE_ALIGNMENT);
        parts.take(sorted_keys, items);
        parts.take(spare_keys, items);
        parts.take(spare_values, items);
        parts.take(edge_of_place, items);
        parts.take(runs, items + 1);
        parts.take(row_runs, items + 1);
        parts.take(work, CudaSort::work_items(items));
        bytes = parts.bytes();
    }
};

// Counts of a list, in memory of the host or the device. The host writes whether edges are single,
// the first edges of ranges, and zeros for the pairs of types. The device then writes which pairs
// of types occur, and the numbers of senders and rows before each range.
struct ListCounts {
    std::int64_t* one_way;
    std::int32_t *first_edge, *first_sender, *first_row, *pairs;
    std::size_t before_pairs, before_counts, bytes;

    ListCounts(char* start, std::int64_t items, std::int64_t square) {
        Layout parts(start);
        parts.take(one_way, 1);
        parts.take(first_edge, items);
        before_pairs = parts.bytes();
        parts.take(pairs, square);
        before_counts = parts.bytes();
        parts.take(first_sender, items);
        parts.take(first_row, items);
        bytes = parts.bytes();
    }
};

// Adds room for a few more items, and for more of them if this is not the first reservation.
std::int64_t padded(std::int64_t count, std::int64_t capacity) {
    return count + count / (capacity == 0 ? 64 : 16);
}

// Makes room for `count` items, and for more where that takes at most `spare` bytes, and lays the
// memory out for as many as fit; `take` returns bytes.
template <typename Take>
void lay_out(DeviceMemory& memory, std::int64_t count, std::int64_t& capacity, const Take& take,
             std::size_t spare = DeviceEdges::ALL) {
    if (count > capacity) {
        std::int64_t wanted = padded(count, capacity);
        if (take(nullptr, wanted) - take(nullptr, count) > spare) wanted = count;
        capacity = 0;
        try {
            memory.reserve(take(nullptr, wanted));
            capacity = wanted;
        } catch (const DeviceError& error) {
            if (error.kind() != DeviceError::out_of_memory) throw;
            memory.reserve(take(nullptr, count));
            capacity = count;
        }
    }
    take(memory.as<char>(), capacity);
}

// Divides neighbouring units into parts of nearly equal size, because the largest part decides how
// large buffers are. A part ends at the unit nearest to a multiple of an equal share. before(i) is
// the size of the first i units. No part is larger than `most`, unless one unit is. Returns the end
// of each part.
template <typename Before>
std::vector<std::int64_t> divide(std::int64_t units, std::int64_t most, const Before& before) {
    std::vector<std::int64_t> ends;
    const std::int64_t all = before(units);
    const std::int64_t number = std::max<std::int64_t>(ceil_div(all, most), 1);
    const std::int64_t share = std::max<std::int64_t>(ceil_div(all, number), 1);
    std::int64_t target = 0;
    for (std::int64_t end = 0; end < units;) {
        const std::int64_t first = before(end);
        do {
            target += share;
        } while (target <= first);
        do {
            ++end;
        } while (end < units && before(end + 1) - first <= most &&
                 std::int64_t(before(end)) + before(end + 1) <= 2 * target);
        ends.push_back(end);
    }
    return ends;
}

// Joins neighbouring ranges to ranges of at most `most` rows each (unless one given range has
// more), or to one range if all together have at most 2 * most. first_row[i]: rows of the first i
// ranges.
std::vector<ReceiverRange> joined(const std::vector<ReceiverRange>& ranges,
                                  const std::int32_t* first_row, std::int64_t most) {
    const auto count = static_cast<std::int64_t>(ranges.size());
    std::vector<std::int64_t> ends{count};
    if (first_row[count] > 2 * most)
        ends = divide(count, most, [&](std::int64_t number) { return first_row[number]; });
    std::vector<ReceiverRange> found;
    std::int64_t begin = 0;
    for (const std::int64_t end : ends) {
        ReceiverRange range = ranges[size(begin)];
        const ReceiverRange& last = ranges[size(end - 1)];
        range.num_receivers = last.first_receiver + last.num_receivers - range.first_receiver;
        range.num_edges = last.first_edge + last.num_edges - range.first_edge;
        found.push_back(range);
        begin = end;
    }
    return found;
}

}  // namespace

DeviceEdges::DeviceEdges(CudaKernels& kernels)
    : item_bytes_(kernels.item_bytes()),
      sort_(kernels),
      expand_rows_(kernels.fixed("edge_lists.cuh", "expand_rows")),
      find_senders_(kernels.fixed("edge_lists.cuh", "find_senders")),
      find_ranges_(kernels.fixed("edge_lists.cuh", "find_ranges")),
      order_groups_(kernels.fixed("edge_lists.cuh", "order_groups")),
      find_runs_(kernels.fixed("edge_lists.cuh", "find_runs")),
      count_senders_(kernels.fixed("edge_lists.cuh", "count_senders")),
      write_senders_(kernels.fixed("edge_lists.cuh", "write_senders")),
      order_rows_(kernels.fixed("edge_lists.cuh", "order_rows")),
      nodes_(kernels.device()),
      edges_(kernels.device()),
      senders_(kernels.device()),
      small_(kernels.device()),
      shift_memory_(kernels.device()),
      table_memory_(kernels.device()),
      staging_(kernels.device()) {}

std::size_t DeviceEdges::bytes() const {
    return nodes_.bytes() + edges_.bytes() + senders_.bytes() + small_.bytes() +
           shift_memory_.bytes() + table_memory_.bytes();
}

// -- memory --------------------------------------------------------------------------------------

void DeviceEdges::reserve_nodes(std::int64_t local, std::int64_t nodes) {
    num_local = first_inner = local;
    num_nodes = nodes;
    group = edge_order == EdgeOrder::any ? 0 : GROUP;
    lay_out(nodes_, std::max<std::int64_t>(nodes, 1), node_capacity_,
            [&](char* start, std::int64_t count) {
                Layout parts(start, DEVICE_ALIGNMENT);
                parts.take(total, 1);
                parts.take(row_ptr, count + 1);
                parts.take(types, count);
                parts.take(by_type, count);
                parts.take(sender_ptr, count + 1);
                parts.take(positions, 3 * count);
                parts.take(num_active, count);
                parts.take(num_pairs, count);
                return parts.bytes();
            });
}

std::vector<std::int32_t> DeviceEdges::take_rows(const Count& count, const DeviceStream& stream) {
    // total and row_ptr are copied together: they follow each other
    const auto before_rows = reinterpret_cast<char*>(row_ptr) - reinterpret_cast<char*>(total);
    const std::size_t bytes = static_cast<std::size_t>(before_rows) + 4 * size(num_local + 1);
    staging_.grow(bytes);
    copy_to_host(staging_.as<char>(), total, bytes, stream);
    stream.synchronize();
    const unsigned long long edges = *staging_.as<const unsigned long long>();
    const auto* const rows = reinterpret_cast<std::int32_t*>(staging_.as<char>() + before_rows);
    if (edges > std::numeric_limits<std::int32_t>::max())
        bad_argument(count.many + (" " + std::to_string(edges)) +
                     " edges, expected at most 2^31 - 1: " + count.instead);
    std::vector<std::int32_t> numbers(size(num_nodes));
    if (count.numbers != nullptr)
        std::copy_n(count.numbers, num_nodes, numbers.begin());
    else
        std::iota(numbers.begin(), numbers.end(), count.first_number);
    for (std::int64_t row = 0; row < num_local; ++row)
        check_neighbors(rows[row + 1] - rows[row], numbers[size(row)], count.reach);
    reserve_edges(rows[num_local]);  // a list that is refused above takes no memory
    count.write();
    row_ptr_.assign(rows, rows + num_local + 1);
    return numbers;
}

void DeviceEdges::reserve_edges(std::int64_t edges) {
    num_edges = edges;
    const bool paired = group > 0;
    // nodes are sorted in the same workspace
    const std::int64_t items = std::max({num_edges, num_nodes, std::int64_t(1)});
    const auto take = [&](char* start, std::int64_t count) {
        Layout parts(start, DEVICE_ALIGNMENT);
        parts.take(sender, count);
        parts.take(receiver, count);
        parts.take(sender_type, count);
        parts.take(receiver_type, count);
        parts.take(by_sender, count);
        parts.take(image_rows, count);
        parts.take(by_group, paired ? count : 0);
        parts.take(pair_row, paired ? count : 0);
        const std::size_t made = parts.bytes();
        workspace_ = start + made;
        char* rows_of_units = nullptr;
        parts.take(rows_of_units, 3 * count * item_bytes_);
        unit = rows_of_units;
        parts.take(length, count);
        parts.take(active, count);
        parts.take(by_length, count);
        parts.take(active_pairs, paired ? count : 0);
        parts.take(active_pair_row, paired ? count : 0);
        parts.take(active_rows, paired ? count : 0);
        return std::max(parts.bytes(), made + Workspace(nullptr, count).bytes);
    };
    std::size_t spare = ALL;
    if (items > edge_capacity_) {
        const std::size_t needed = take(nullptr, items);
        spare = before_growth(needed - std::min(needed, edges_.bytes()));
    }
    lay_out(edges_, items, edge_capacity_, take, spare);
    shifts = {};
}

double* DeviceEdges::reserve_shifts() {
    shift_memory_.grow(24 * size(num_edges) + 1);
    shifts = {shift_memory_.as<double>(), nullptr, nullptr, 0};
    return shift_memory_.as<double>();
}

// -- lists ---------------------------------------------------------------------------------------

std::int64_t DeviceEdges::most_range_edges = 131072;
std::int64_t DeviceEdges::most_small_edges = 131072;
std::int64_t DeviceEdges::fewest_filling = 1000;

std::vector<ReceiverRange> DeviceEdges::divided(std::int64_t most_edges) const {
    const std::int64_t unit = std::max<std::int64_t>(group, 1);
    const auto receivers = [&](std::int64_t units) {
        return narrow(std::min(units * unit, num_local));
    };
    const auto edges = [&](std::int64_t units) { return row_ptr_[size(receivers(units))]; };
    std::vector<ReceiverRange> found;
    std::int64_t begin = 0;
    for (const std::int64_t end : divide(ceil_div(num_local, unit), most_edges, edges)) {
        ReceiverRange range;
        range.first_receiver = receivers(begin);
        range.num_receivers = receivers(end) - receivers(begin);
        range.first_edge = edges(begin);
        range.num_edges = edges(end) - edges(begin);
        found.push_back(range);
        begin = end;
    }
    return found;
}

void DeviceEdges::sort_by_type(const std::int32_t* host_types, int num_types,
                               const DeviceStream& stream) {
    const Workspace w(workspace_, edge_capacity_);
    const auto sort = [&](std::int64_t begin, std::int64_t end, std::vector<std::int32_t>& first) {
        first.assign(size(num_types) + 1, 0);
        for (std::int64_t n = begin; n < end; ++n) ++first[size(host_types[n]) + 1];
        first[0] = narrow(begin);
        std::partial_sum(first.begin(), first.end(), first.begin());
        const auto* keys = reinterpret_cast<const std::uint32_t*>(types) + begin;
        sort_.sort(stream, {end - begin, CudaSort::bits(num_types), keys, nullptr, narrow(begin),
                            w.sorted_keys, by_type + begin, w.spare_keys, w.spare_values, w.work});
    };
    sort(0, num_local, local_type_first);
    sort(num_local, num_nodes, ghost_type_first);
}

void DeviceEdges::order_edges(int num_types, bool reversed, const DeviceStream& stream) {
    const Workspace w(workspace_, edge_capacity_);
    ListArguments a{};
    a.num_edges = num_edges;
    a.num_local = num_local;
    a.num_nodes = num_nodes;
    a.num_types = num_types;
    a.row_ptr = row_ptr;
    a.sender = sender;
    a.types = types;
    a.receiver = receiver;
    a.sender_type = sender_type;
    a.receiver_type = receiver_type;
    a.sorted_sender = w.sorted_keys;
    a.sender_ptr = sender_ptr;
    a.by_sender = by_sender;
    a.runs = w.runs;
    a.group = group;
    a.row_runs = w.row_runs;
    a.row_of_edge = w.spare_values;
    a.by_group = by_group;
    a.pair_row = pair_row;
    // If the list may need several ranges, the rows of each of these are counted.
    std::vector<ReceiverRange> units = divided(range_edges);
    const std::int64_t square = std::int64_t(num_types) * num_types;
    const auto most = static_cast<std::int64_t>(units.size()) + 2;
    const std::size_t bytes = ListCounts(nullptr, most, square).bytes;
    small_.grow(bytes);
    staging_.grow(bytes);
    const ListCounts there(small_.as<char>(), most, square),
        host(staging_.as<char>(), most, square);
    one_way = there.one_way;
    a.one_way = reinterpret_cast<Long*>(one_way);
    a.range_edge = there.first_edge;
    a.range_first_sender = there.first_sender;
    a.range_first_row = there.first_row;
    a.pairs = there.pairs;

    const auto launch = [&](const CudaFunction& function, std::int64_t threads) {
        function.cover(stream, threads, EDGE_THREADS, a);
    };
    const auto sort = [&](std::int64_t keys, const std::uint32_t* key, const std::int32_t* edges,
                          std::int32_t* sorted) {
        sort_.sort(stream, {num_edges, CudaSort::bits(keys), key, edges, 0, w.sorted_keys, sorted,
                            w.spare_keys, w.spare_values, w.work});
    };
    const auto take_first_edges = [&] {
        a.num_ranges = static_cast<std::int64_t>(ranges.size());
        for (std::size_t s = 0; s < ranges.size(); ++s) host.first_edge[s] = ranges[s].first_edge;
        host.first_edge[a.num_ranges] = narrow(num_edges);
    };
    // Counts the rows before each range and, if there are several, its senders.
    const auto count = [&](bool with_senders) {
        launch(find_runs_, num_edges);
        if (with_senders) sort_.sum(stream, w.runs, num_edges, w.work);
        sort_.sum(stream, w.row_runs, num_edges, w.work);
        launch(count_senders_, a.num_ranges + 1);
        copy_to_host(host.pairs, there.pairs, bytes - there.before_pairs, stream);
    };

    // Ranges use two buffers of rows alternately. If the two can hold all rows, there is one range.
    // A listed edge has at most one row, and about half of the edges are listed if each has a
    // reverse. (If rounding has left out one reverse, all edges are listed, which takes more
    // memory.)
    const bool alone = !reversed || edge_order != EdgeOrder::paired;
    const std::int64_t most_rows = range_edges + range_edges / 2;
    const bool counted =
        group > 0 && units.size() > 1 &&
        (alone || num_nodes != num_local ? num_edges : num_edges / 2) > 2 * most_rows;
    ReceiverRange whole;
    whole.num_receivers = narrow(num_local);
    whole.num_edges = narrow(num_edges);
    ranges = counted ? std::move(units) : std::vector<ReceiverRange>{whole};
    *host.one_way = alone ? 1 : 0;
    take_first_edges();
    std::fill_n(host.pairs, square, 0);
    copy_to_device(small_.as<char>(), staging_.as<char>(), there.before_counts, stream);
    launch(expand_rows_, 32 * num_local);
    sort(num_nodes, reinterpret_cast<const std::uint32_t*>(sender), nullptr, by_sender);
    launch(find_senders_, num_nodes + 1);
    if (group == 0) {
        copy_to_host(host.pairs, there.pairs, there.before_counts - there.before_pairs, stream);
        stream.synchronize();
    } else {
        order_groups_.launch(stream, ceil_div(num_local, group), EDGE_THREADS, a);
        if (counted) {
            // Any order is good in which edges with the same group and sender follow each other.
            a.edge_of_place = by_group;
            count(false);
            stream.synchronize();
            ranges = joined(ranges, host.first_row, most_rows);
            take_first_edges();
            copy_to_device(there.first_edge, host.first_edge, 4 * size(a.num_ranges + 1), stream);
        }
        const bool several = ranges.size() > 1;
        a.edge_of_place = by_sender;
        if (several) {
            a.range_key = reinterpret_cast<std::uint32_t*>(w.runs);
            launch(find_ranges_, num_edges);
            sort(a.num_ranges, a.range_key, by_sender, w.edge_of_place);
            a.edge_of_place = w.edge_of_place;
        }
        count(several);
        if (several) stream.synchronize();  // for the number of senders
        const std::int64_t found = several ? host.first_sender[a.num_ranges] : 0;
        const std::int64_t pointers = (several ? found : num_nodes) + a.num_ranges;
        senders_.grow(4 * size(found + pointers) + 1024);
        Layout parts(senders_.as<char>(), DEVICE_ALIGNMENT);
        parts.take(range_sender, found);
        parts.take(range_row_ptr, pointers);
        if (!several) range_sender = nullptr;
        a.range_sender = range_sender;
        a.range_row_ptr = range_row_ptr;
        launch(write_senders_, std::max<std::int64_t>({num_edges, a.num_ranges, num_nodes + 1}));
        launch(order_rows_, num_edges);
        if (!several) stream.synchronize();
        for (std::size_t s = 0; s < ranges.size(); ++s) {
            ranges[s].first_sender = several ? host.first_sender[s] : 0;
            ranges[s].num_senders =
                several ? host.first_sender[s + 1] - host.first_sender[s] : narrow(num_nodes);
            ranges[s].first_row = host.first_row[s];
            ranges[s].num_rows = host.first_row[s + 1] - host.first_row[s];
        }
    }
    pairs = {};
    for (std::int64_t i = 0; i < square; ++i)
        if (host.pairs[i] != 0) pairs.add(narrow(i / num_types), narrow(i % num_types));
}

void DeviceEdges::complete(const std::int32_t* host_types, int num_types, bool reversed,
                           const DeviceStream& stream) {
    sort_by_type(host_types, num_types, stream);
    order_edges(num_types, reversed, stream);
}

// -- lists of the host ---------------------------------------------------------------------------

void DeviceEdges::upload(const Graph& graph, int num_types, bool reversed,
                         const DeviceStream& stream) {
    const std::vector<std::int64_t>& first = graph.all_row_ptr();
    row_ptr_.assign(first.begin(), first.end());
    reserve_nodes(graph.num_local, graph.num_nodes);
    reserve_edges(row_ptr_.back());
    copy_to_device(row_ptr, row_ptr_.data(), 4 * row_ptr_.size(), stream);
    copy_to_device(sender, graph.all_sender().data(), 4 * size(num_edges), stream);
    copy_to_device(types, graph.types.data(), 4 * size(num_nodes), stream);
    complete(graph.types.data(), num_types, reversed, stream);
    stream.synchronize();
}

void DeviceEdges::upload_shifts(const Graph& graph, const System& system, bool fresh,
                                const DeviceStream& stream) {
    if (system.make_edges && system.num_copies == 0) return;
    if (system.images != nullptr || system.make_edges)
        return upload_images(graph, system, fresh, stream);
    shifts = {};
    table_.clear();
    if (system.shifts == nullptr) return;
    shift_.resize(size(3 * num_edges));
    const std::vector<std::int32_t>& edge = graph.all_edge();
    for (std::int64_t i = 0; i < num_edges; ++i)
        for (int d = 0; d < 3; ++d)
            shift_[size(3 * i + d)] =
                system.shifts[3 * static_cast<std::int64_t>(edge[size(i)]) + d];
    copy_to_device(reserve_shifts(), shift_.data(), 24 * size(num_edges), stream);
    stream.synchronize();
}

void DeviceEdges::upload_images(const Graph& graph, const System& system, bool fresh,
                                const DeviceStream& stream) {
    const double* const end = system.image_shifts + 3 * system.num_images;
    // rows of the table are there, and perhaps the same table
    const bool same_size = shifts.table != nullptr && size(3 * system.num_images) == table_.size();
    const bool listed = system.make_edges || (!fresh && shifts.image != nullptr && same_size);
    if (listed && same_size && std::equal(system.image_shifts, end, table_.begin())) return;
    table_.assign(system.image_shifts, end);
    table_memory_.grow(8 * table_.size() + 1);
    table_memory_.upload(table_.data(), 8 * table_.size(), stream);
    shifts = {nullptr, listed ? shifts.image : image_rows, table_memory_.as<double>(), 0};
    if (!listed) {
        image_.resize(size(num_edges));
        const std::vector<std::int32_t>& edge = graph.all_edge();
        for (std::int64_t i = 0; i < num_edges; ++i) image_[size(i)] = system.images[edge[size(i)]];
        copy_to_device(image_rows, image_.data(), 4 * size(num_edges), stream);
    }
    stream.synchronize();
}

std::int32_t DeviceEdges::receiver_of(std::int32_t edge) const {
    return narrow(std::upper_bound(row_ptr_.begin(), row_ptr_.end(), edge) - row_ptr_.begin() - 1);
}

std::int32_t DeviceEdges::sender_of(std::int32_t edge, const DeviceStream& stream) const {
    std::int32_t found = 0;
    copy_to_host(&found, sender + edge, 4, stream);
    stream.synchronize();
    return found;
}

}  // namespace mdcg
