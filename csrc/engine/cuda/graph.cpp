#include "engine/cuda/graph.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace mdcg {

namespace {

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
std::int32_t narrow(std::int64_t n) { return static_cast<std::int32_t>(n); }

// Parts of one piece of memory, each aligned to 256 bytes.
class Parts {
public:
    std::size_t add(std::size_t bytes) {
        const std::size_t at = end_;
        end_ += (bytes + 255) / 256 * 256;
        return at;
    }
    std::size_t bytes() const { return end_; }

private:
    std::size_t end_ = 0;
};

}  // namespace

void CudaGraph::make_chunks(const Graph& graph) {
    const std::vector<std::int64_t>& first = graph.all_row_ptr();
    chunks.clear();
    chunk_of_.resize(size(num_local));
    longest_chunk = 0;
    for (std::int64_t begin = 0; begin < num_local;) {
        std::int64_t end = begin + 1;
        while (end < num_local && first[size(end + 1)] - first[size(begin)] <= chunk_slots) ++end;
        for (std::int64_t r = begin; r < end; ++r)
            chunk_of_[size(r)] = narrow(static_cast<std::int64_t>(chunks.size()));
        CudaChunk chunk{};
        chunk.first_receiver = narrow(begin);
        chunk.num_receivers = narrow(end - begin);
        chunk.first_slot = narrow(first[size(begin)]);
        chunk.num_slots = narrow(first[size(end)] - first[size(begin)]);
        longest_chunk = std::max(longest_chunk, chunk.num_slots);
        chunks.push_back(chunk);
        begin = end;
    }
}

// Slots of all senders, in order; of equal senders the lower slot first. Every chunk takes its own
// out of that.
void CudaGraph::sort_by_sender(const Graph& graph) {
    const std::vector<std::int32_t>& senders = graph.all_sender();
    sender_ptr_.assign(size(num_nodes) + 1, 0);
    for (const std::int32_t s : senders) ++sender_ptr_[size(s) + 1];
    std::partial_sum(sender_ptr_.begin(), sender_ptr_.end(), sender_ptr_.begin());
    by_sender_.resize(size(num_slots));
    std::vector<std::int32_t> at(sender_ptr_.begin(), sender_ptr_.end() - 1);
    for (std::int64_t i = 0; i < num_slots; ++i)
        by_sender_[size(at[size(senders[size(i)])]++)] = narrow(i);

    const auto chunk_of = [&](std::int32_t i) { return size(chunk_of_[size(receiver_[size(i)])]); };
    std::vector<std::int32_t> last(chunks.size(), -1);
    for (const std::int32_t i : by_sender_) {
        const std::size_t c = chunk_of(i);
        chunks[c].num_senders += last[c] != senders[size(i)];
        last[c] = senders[size(i)];
    }
    std::int32_t total = 0;
    most_senders = 0;
    for (CudaChunk& chunk : chunks) {
        chunk.first_sender = total;
        total += chunk.num_senders;
        most_senders = std::max(most_senders, chunk.num_senders);
    }
    place_.resize(size(num_slots));
    slot_of_place_.resize(size(num_slots));
    chunk_sender_.resize(size(total));
    chunk_sender_ptr_.resize(size(total) + chunks.size());
    std::vector<std::int32_t> rows(chunks.size(), 0), found(chunks.size(), 0);
    last.assign(chunks.size(), -1);
    for (const std::int32_t i : by_sender_) {
        const std::size_t c = chunk_of(i);
        if (last[c] != senders[size(i)]) {
            const std::size_t k = size(chunks[c].first_sender + found[c]++);
            chunk_sender_[k] = last[c] = senders[size(i)];
            chunk_sender_ptr_[k + c] = rows[c];
        }
        slot_of_place_[size(chunks[c].first_slot + rows[c])] = i;
        place_[size(i)] = rows[c]++;
    }
    for (std::size_t c = 0; c < chunks.size(); ++c)
        chunk_sender_ptr_[size(chunks[c].first_sender + chunks[c].num_senders) + c] =
            chunks[c].num_slots;
}

void CudaGraph::sort_by_type(const Graph& graph, int num_types) {
    by_type_.resize(size(num_nodes));
    const auto sort = [&](std::int64_t begin, std::int64_t end, std::vector<std::int32_t>& first) {
        first.assign(size(num_types) + 1, 0);
        for (std::int64_t n = begin; n < end; ++n) ++first[size(graph.types[size(n)]) + 1];
        first[0] = narrow(begin);
        std::partial_sum(first.begin(), first.end(), first.begin());
        std::vector<std::int32_t> at(first.begin(), first.end() - 1);
        for (std::int64_t n = begin; n < end; ++n)
            by_type_[size(at[size(graph.types[size(n)])]++)] = narrow(n);
    };
    sort(0, num_local, local_type_first);
    sort(num_local, num_nodes, ghost_type_first);
}

void CudaGraph::upload(const Graph& graph, int num_types, const CudaStream& stream) {
    num_local = graph.num_local;
    num_nodes = graph.num_nodes;
    num_slots = graph.num_edges;
    const std::vector<std::int64_t>& first = graph.all_row_ptr();
    row_ptr_.assign(first.begin(), first.end());
    receiver_.resize(size(num_slots));
    sender_type_.resize(size(num_slots));
    receiver_type_.resize(size(num_slots));
    slot_.resize(size(num_slots));
    std::iota(slot_.begin(), slot_.end(), 0);
    std::vector<char> found(size(num_types) * size(num_types), 0);
    pairs.receiver.clear(), pairs.sender.clear();
    for (std::int64_t r = 0; r < num_local; ++r)
        for (std::int64_t i = first[size(r)]; i < first[size(r) + 1]; ++i) {
            const std::int32_t to = graph.types[size(r)];
            const std::int32_t from = graph.types[size(graph.all_sender()[size(i)])];
            receiver_[size(i)] = narrow(r);
            sender_type_[size(i)] = from;
            receiver_type_[size(i)] = to;
            char& known = found[size(to) * size(num_types) + size(from)];
            if (known) continue;
            known = 1;
            pairs.receiver.push_back(to);
            pairs.sender.push_back(from);
        }
    make_chunks(graph);
    sort_by_sender(graph);
    sort_by_type(graph, num_types);

    struct Upload {
        const std::int32_t** target;
        const std::vector<std::int32_t>* source;
        std::size_t offset;
    };
    Upload uploads[] = {{&row_ptr, &row_ptr_, 0},
                        {&sender, &graph.all_sender(), 0},
                        {&receiver, &receiver_, 0},
                        {&sender_type, &sender_type_, 0},
                        {&receiver_type, &receiver_type_, 0},
                        {&slot, &slot_, 0},
                        {&place, &place_, 0},
                        {&slot_of_place, &slot_of_place_, 0},
                        {&chunk_sender, &chunk_sender_, 0},
                        {&chunk_sender_ptr, &chunk_sender_ptr_, 0},
                        {&sender_ptr, &sender_ptr_, 0},
                        {&by_sender, &by_sender_, 0},
                        {&types, &graph.types, 0},
                        {&by_type, &by_type_, 0}};
    Parts parts;
    for (Upload& each : uploads) each.offset = parts.add(4 * each.source->size());
    const std::size_t positions_at = parts.add(24 * size(num_nodes));
    const std::size_t unit_at = parts.add(3 * size(num_slots) * size(item_bytes_));
    const std::size_t length_at = parts.add(8 * size(num_slots));
    const std::size_t live_at = parts.add(4 * size(num_slots));
    const std::size_t by_length_at = parts.add(4 * size(num_slots));
    const std::size_t num_live_at = parts.add(4 * size(num_local));
    memory_.grow(parts.bytes());
    char* const base = memory_.as<char>();
    for (const Upload& each : uploads) {
        *each.target = reinterpret_cast<const std::int32_t*>(base + each.offset);
        copy_to_device(base + each.offset, each.source->data(), 4 * each.source->size(), stream);
    }
    positions = reinterpret_cast<double*>(base + positions_at);
    unit = base + unit_at;
    length = reinterpret_cast<double*>(base + length_at);
    live = reinterpret_cast<std::int32_t*>(base + live_at);
    by_length = reinterpret_cast<std::int32_t*>(base + by_length_at);
    num_live = reinterpret_cast<std::int32_t*>(base + num_live_at);
    shift = nullptr;
    stream.synchronize();
}

bool CudaGraph::upload_shifts(const Graph& graph, const System& system, bool fresh,
                              const CudaStream& stream) {
    if (system.images != nullptr) return upload_images(graph, system, fresh, stream);
    image_shift_.clear();
    shift = nullptr;
    if (system.shifts == nullptr) return false;
    shift_.resize(size(3 * num_slots));
    const std::vector<std::int32_t>& edge = graph.all_edge();
    for (std::int64_t i = 0; i < num_slots; ++i)
        for (int d = 0; d < 3; ++d)
            shift_[size(3 * i + d)] =
                system.shifts[3 * static_cast<std::int64_t>(edge[size(i)]) + d];
    shift_memory_.grow(24 * size(num_slots) + 1);
    shift = shift_memory_.as<double>();
    shift_memory_.upload(shift_.data(), 24 * size(num_slots), stream);
    stream.synchronize();
    return false;
}

bool CudaGraph::upload_images(const Graph& graph, const System& system, bool fresh,
                              const CudaStream& stream) {
    const double* const end = system.image_shifts + 3 * system.num_images;
    // numbers of images are there, and perhaps the same shifts
    const bool listed = !fresh && size(3 * system.num_images) == image_shift_.size();
    if (listed && std::equal(system.image_shifts, end, image_shift_.begin())) return false;
    shift_memory_.grow(24 * size(num_slots) + 1);
    shift = shift_memory_.as<double>();
    image_shift_.assign(system.image_shifts, end);
    Parts parts;
    parts.add(4 * size(num_slots));
    const std::size_t table_at = parts.add(8 * image_shift_.size());
    image_memory_.grow(parts.bytes());
    char* const base = image_memory_.as<char>();
    image = reinterpret_cast<const std::int32_t*>(base);
    image_shift = reinterpret_cast<const double*>(base + table_at);
    if (!listed) {
        image_.resize(size(num_slots));
        const std::vector<std::int32_t>& edge = graph.all_edge();
        for (std::int64_t i = 0; i < num_slots; ++i) image_[size(i)] = system.images[edge[size(i)]];
        copy_to_device(base, image_.data(), 4 * size(num_slots), stream);
    }
    copy_to_device(base + table_at, image_shift_.data(), 8 * image_shift_.size(), stream);
    stream.synchronize();
    return num_slots > 0;
}

}  // namespace mdcg
