#include "engine/cuda/executor.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "core/integers.hpp"
#include "engine/cuda/devices.hpp"
#include "engine/error.hpp"

namespace mdcg {

namespace {

// Bytes of the two buffers of rows of pairs. A range must have enough receivers to fill all
// multiprocessors with blocks.
template <typename T>
constexpr std::int64_t RANGE_BYTES = std::int64_t(1) << (sizeof(T) == 4 ? 29 : 30);
constexpr std::int64_t RANGE_STEP = 8192;  // edges

}  // namespace

template <typename T>
CudaExecutor<T>::CudaExecutor(const Program& program, std::vector<std::unique_ptr<CudaOp<T>>> ops,
                              const ModelInfo& info, const CudaTarget& place)
    : ExecutorOf<T, CudaOp<T>>(program, std::move(ops)),
      num_types_(info.num_types()),
      streams_(place.device),
      stream_(streams_[0]),
      kernels_(place, sizeof(T)),
      graph_(kernels_),
      cells_(kernels_),
      geometry_(kernels_, info.r_max, info.flip_edges),
      ghosts_(kernels_),
      results_(kernels_),
      arena_(place.device),
      edge_gradient_(place.device),
      energy_weights_(place.device),
      own_forces_(place.device),
      positions_(place.device),
      descriptors_(place.device) {
    graph_.before_growth = [this](std::size_t more) {
        const std::size_t needed = bytes() + more;
        check_memory(needed);
        return needed > bytes() ? allowed_memory() - needed : 0;
    };
    std::int64_t row = 1;
    for (const auto& op : ops_) {
        graph_.edge_order = std::max(graph_.edge_order, op->edge_order());
        graph_.by_sender_type = graph_.by_sender_type || op->by_sender_type();
        row = std::max(row, op->pair_row_bytes());
    }
    // A range has as many edges as rows fit into the two buffers, which may grow by half.
    const std::int64_t steps = std::max<std::int64_t>(RANGE_BYTES<T> / (2 * RANGE_STEP * row), 1);
    graph_.range_edges = std::min(steps * RANGE_STEP, DeviceEdges::most_range_edges);
    worker_.stream = &stream_;
    worker_.streams = &streams_;
    worker_.edges = &graph_;
    worker_.ghosts = &ghosts_;
    if (program.reads_points) points_ = std::make_unique<DevicePoints>(kernels_);
    worker_.points = points_.get();
    for (int s = 1; s < STEP_STREAMS; ++s) side_streams_.emplace_back(place.device);
}

template <typename T>
void CudaExecutor<T>::ask_for_all_kernels() {
    for (const auto& op : ops_) op->prepare_all(kernels_, stream_);
    if (points_ == nullptr) batch_ = std::make_unique<CudaBatch>(kernels_);
}

template <typename T>
void CudaExecutor<T>::prepare() {
    if (prepared_) return;
    for (const auto& op : ops_) op->prepare(kernels_, stream_);
    kernels_.load();
    stream_.synchronize();
    prepared_ = true;
}

template <typename T>
void CudaExecutor<T>::reload_tensors() {
    forget_steps();
    for (std::size_t i = 0; i < ops_.size(); ++i)
        if (program_.ops[i]->depends_on_inputs) ops_[i]->on_new_inputs(stream_);
    stream_.synchronize();
}

template <typename T>
std::size_t CudaExecutor<T>::bytes() const {
    std::size_t of_ops = 0;
    for (const auto& op : ops_) of_ops += op->bytes();
    return of_ops + graph_.bytes() + cells_.bytes() + arena_.bytes() + edge_gradient_.bytes() +
           results_.bytes() + energy_weights_.bytes() + own_forces_.bytes() + ghosts_.bytes() +
           (points_ ? points_->bytes() : 0) + (batch_ ? batch_->bytes() : 0);
}

// -- lists and buffers ---------------------------------------------------------------------------

template <typename T>
void CudaExecutor<T>::set_graph(const Graph& graph, bool reversed) {
    forget_steps();
    reserve_results(graph.num_local, graph.num_nodes, graph.num_nodes);
    graph_.upload(graph, num_types_, reversed, stream_);
    source_ = Source::graph;
    on_new_list();
}

template <typename T>
bool CudaExecutor<T>::make_list(const VerletSkin& watch, const ListPoints& points, Graph& graph) {
    const std::optional<CellArguments> grid = CudaCellList::grid(watch, points);
    if (!grid) return false;
    forget_steps();
    const BufferPlan& least = program_.energy_plan;
    check_memory(bytes_of_rows(least, least.local_width, points.num_local, points.num_nodes));
    reserve_results(points.num_local, points.num_nodes, points.count);
    std::copy_n(points.positions, 3 * points.count, positions());
    ListPoints staged = points;
    staged.positions = positions();  // kernels read them there
    cells_.make(*grid, watch, staged, num_types_, stream_, graph_, graph.node);
    graph.forget_edges(points.num_local, points.num_nodes, graph_.num_edges);
    source_ = points.copies ? Source::graph : Source::cells;
    on_new_list();
    return true;
}

template <typename T>
void CudaExecutor<T>::make_list(const BatchPart& part, double r_max, Graph& graph) {
    if (batch_ == nullptr) {
        batch_ = std::make_unique<CudaBatch>(kernels_);
        kernels_.load();
    }
    forget_steps();
    reserve_results(part.num_nodes(), part.num_nodes(), part.num_nodes());
    batch_->make_list(part, r_max, num_types_, stream_, graph_, graph.node);
    graph.forget_edges(part.num_nodes(), part.num_nodes(), graph_.num_edges);
    source_ = Source::batch;
    on_new_list();
}

template <typename T>
void CudaExecutor<T>::set_points(const Points& points, const double* positions, double slack) {
    forget_steps();
    points_->upload(points, positions, graph_.num_local, slack, stream_);
}

template <typename T>
void CudaExecutor<T>::on_new_list() {
    // Lists of one system have the same steps, except for addresses and sizes. The first evaluation
    // of another system runs layer by layer, which gives the times of its layers.
    if (8 * std::abs(graph_.num_local - step_nodes_) > step_nodes_) {
        steps_.clear();
        step_nodes_ = graph_.num_local;
    }
    small_ = graph_.num_edges <= DeviceEdges::most_small_edges && !program_.reads_points;
    graph_.gradient_streams = 1;
    for (const auto& op : ops_) {
        op->on_new_list(graph_, stream_);
        graph_.gradient_streams = std::max(graph_.gradient_streams, op->gradient_streams());
    }
    reserve();
}

template <typename T>
void CudaExecutor<T>::set_shifts(const Graph& graph, const System& system, bool fresh) {
    const EdgeShifts before = graph_.shifts;
    graph_.upload_shifts(graph, system, fresh, stream_);
    if (std::memcmp(&before, &graph_.shifts, sizeof before) != 0) forget_steps();
}

// Reserves results first, because they are larger: growing memory takes an eighth more than it
// needs if possible, and if positions did so first, too little could be left for results.
template <typename T>
void CudaExecutor<T>::reserve_results(std::int64_t local, std::int64_t nodes, std::int64_t points) {
    results_.reserve(local, nodes, stream_);
    positions_.grow(24 * size(points) + 1);
}

template <typename T>
std::size_t CudaExecutor<T>::bytes_of_rows(const BufferPlan& plan, std::int64_t local_width,
                                           std::int64_t local, std::int64_t nodes) {
    constexpr auto ALIGNED = static_cast<std::int64_t>(DEVICE_ALIGNMENT / sizeof(T));
    const std::int64_t items = (plan.total_width + plan.chunk_width) * nodes + local_width * local;
    return size(ceil_div(items, ALIGNED)) * DEVICE_ALIGNMENT;
}

// Reserves what evaluations with and without gradients need at most, so that captured steps keep
// their addresses. Scratch memory of an operation is behind the rows that are in use while it runs;
// scratch_bytes is the maximum of its two passes.
template <typename T>
void CudaExecutor<T>::reserve() {
    std::size_t most = 0;
    for (const bool gradient : {false, true}) {
        const BufferPlan& plan = plan_of(gradient);
        most = std::max(most, end_of_rows(plan, plan.local_width));
        for (std::size_t i = 0; i < plan.local_in_use.size(); ++i) {
            const auto& op = ops_[size(program_.stage(i).ops[0])];
            most =
                std::max(most, end_of_rows(plan, plan.local_in_use[i]) + op->scratch_bytes(graph_));
        }
    }
    const std::size_t gradients = std::max<std::size_t>(1, graph_.gradient_bytes());
    const std::size_t weights = 8 * size(graph_.num_local);  // if they are given
    const auto lacking = [](const DeviceMemory& memory, std::size_t bytes) {
        return bytes - std::min(bytes, memory.bytes());
    };
    const std::size_t needed =
        bytes() + lacking(arena_, most) + lacking(edge_gradient_, gradients) +
        lacking(energy_weights_, weights) + lacking(own_forces_, own_forces_bytes());
    check_memory(needed);
    // a third of what is left for each of the two that grow; a third stays free
    const std::size_t spare = needed > bytes() ? (allowed_memory() - needed) / 3 : 0;
    arena_.grow(most, spare);
    edge_gradient_.grow(gradients, spare);
    own_forces_.grow(own_forces_bytes(), 0);
    worker_.types = graph_.types;
    worker_.energies = on_device(results_.energies);
    worker_.failures = results_.on_device<int>(results_.flags);
}

template <typename T>
std::size_t CudaExecutor<T>::allowed_memory() const {
    return memory_ > 0 ? memory_ : bytes() + device_memory(stream_.device()).free;
}

template <typename T>
void CudaExecutor<T>::check_memory(std::size_t needed) const {
    if (needed <= bytes() && memory_ == 0) return;
    const std::size_t allowed = allowed_memory();
    if (needed > allowed)
        throw MemoryError(static_cast<double>(needed), static_cast<double>(allowed),
                          device_label(stream_.device()));
}

// -- steps ---------------------------------------------------------------------------------------

template <typename T>
typename CudaExecutor<T>::Step& CudaExecutor<T>::step_of(const Wanted& wanted, bool communicates) {
    const bool virials = wanted.virial || wanted.virials;
    const bool has_ghosts = graph_.num_nodes > graph_.num_local;
    // forces and virials decide which results are downloaded
    const int kind = wanted.gradient + 2 * virials + 4 * communicates +
                     8 * (wanted.descriptors != nullptr) + 16 * small_ + 32 * wanted.forces +
                     64 * wanted.virials + 128 * has_ghosts + 256 * overlaps();
    const auto [found, made] = steps_.try_emplace(kind);
    Step& step = found->second;
    if (!made) return step;
    std::vector<char> halves;
    for (std::size_t i = 0; i < ops_.size() && overlaps(); ++i)
        halves.push_back(ops_[i]->takes_halves());
    step.parts = parts_of_step(program_, wanted.gradient, communicates, has_ghosts, small_, halves);
    while (events_.size() < step.parts.size() + 1)
        events_.push_back(std::make_unique<DeviceEvent>(stream_.device()));
    return step;
}

template <typename T>
void CudaExecutor<T>::run(const Graph& graph, Communicator* communicator, const Wanted& wanted) {
    const BufferPlan& plan = plan_of(wanted.gradient);
    T* const total = arena_.template as<T>();
    T* const chunk = total + plan.total_width * graph_.num_nodes;
    T* const local = chunk + plan.chunk_width * graph_.num_nodes;
    this->bind(plan, {local, total, chunk, graph_.num_local, graph_.num_nodes}, worker_);
    worker_.with_gradient = wanted.gradient;
    worker_.communicator = communicator;
    if (communicator != nullptr && !ghosts_.has_list())
        ghosts_.on_new_list(*communicator, program_.max_exchanged_width, graph_, stream_);
    worker_.edge_gradient = wanted.gradient ? edge_gradient_.template as<T>() : nullptr;
    worker_.forces = own_forces_.as<double>();
    worker_.virials = worker_.forces + 3 * graph_.num_local;
    worker_.cell = wanted.cell;
    worker_.periodic = wanted.periodic;
    worker_.inputs = wanted.inputs;
    worker_.waves_cell = wanted.waves_cell;
    worker_.batch = wanted.batch;
    for (const auto& op : ops_) op->reserve(worker_);
    worker_.energy_weights = upload_energy_weights(graph, wanted);
    if (wanted.descriptors != nullptr) {
        std::int64_t width = 0;
        for (const int id : program_.descriptors) width += program_.values[size(id)].rows.width;
        descriptors_.grow(size(graph_.num_local * width) * sizeof(T));
    }
    Step& step = step_of(wanted, communicator != nullptr);
    ++step.runs;
    if (step.runs == 1 || wanted.descriptors != nullptr || wanted.energy_weights != nullptr)
        run_direct(step, wanted);
    else
        run_captured(step, wanted);
    exchanged_ = ghosts_.take_copied();
    finish(graph, wanted);
}

// Returns the weights on the device, or null if there are none.
template <typename T>
const double* CudaExecutor<T>::upload_energy_weights(const Graph& graph, const Wanted& wanted) {
    if (wanted.energy_weights == nullptr || graph_.num_local == 0) return nullptr;
    std::vector<double> weights;
    graph.gather_local(wanted.energy_weights, weights);
    energy_weights_.reserve(weights.size() * sizeof(double));
    energy_weights_.upload(weights.data(), weights.size() * sizeof(double), stream_);
    stream_.synchronize();
    return energy_weights_.as<const double>();
}

// Runs layer by layer, and measures the time of each.
template <typename T>
void CudaExecutor<T>::run_direct(Step& step, const Wanted& wanted) {
    events_[0]->record(stream_);
    for (std::size_t i = 0; i < step.parts.size(); ++i) {
        enqueue(step.parts[i], wanted);
        if (wanted.descriptors != nullptr && step.parts[i].kind == StepPart::forward)
            download_descriptors(*step.parts[i].stage);
        events_[i + 1]->record(stream_);
    }
    stream_.synchronize();
    times_.assign(program_.ops.size(), {});
    for (std::size_t i = 0; i < step.parts.size(); ++i) {
        const StepPart& part = step.parts[i];
        if (part.stage == nullptr) continue;
        LayerTime& time = times_[size(part.stage->ops[0])];
        (part.kind == StepPart::forward ? time.forward : time.backward) +=
            events_[i + 1]->since(*events_[i]);
    }
}

template <typename T>
void CudaExecutor<T>::run_captured(Step& step, const Wanted& wanted) {
    std::size_t segment = 0;
    for (std::size_t i = 0; i < step.parts.size(); ++i) {
        if (step.parts[i].direct) {
            enqueue(step.parts[i], wanted);
            continue;
        }
        std::size_t end = i;
        while (end < step.parts.size() && !step.parts[end].direct) ++end;
        if (segment == step.segments.size())
            step.segments.push_back(std::make_unique<CapturedGraph>());
        CapturedGraph& graph = *step.segments[segment++];
        const auto enqueue_parts = [&] {
            for (std::size_t k = i; k < end; ++k) enqueue_on_stream(step.parts, k, wanted);
        };
        // A large system runs directly while its step is captured for the next run, so that the
        // device does not wait.
        const bool meanwhile = step.stale && !small_;
        if (step.stale) {
            try {
                if (meanwhile) enqueue_parts();
                graph.begin(stream_);
                enqueue_parts();
                graph.end(stream_);
            } catch (...) {
                worker_.stream = &stream_;
                graph.abandon(stream_);
                throw;
            }
        }
        if (!meanwhile) graph.replay(stream_);
        i = end - 1;
    }
    // after an exception before this line, the next run captures all segments again
    step.stale = false;
    ++replays_;
    stream_.synchronize();
}

// Enqueues a part on its own stream, after the parts that it waits for.
template <typename T>
void CudaExecutor<T>::enqueue_on_stream(const std::vector<StepPart>& parts, std::size_t number,
                                        const Wanted& wanted) {
    const StepPart& part = parts[number];
    worker_.stream = part.stream == 0 ? &stream_ : &side_streams_[size(part.stream - 1)];
    for (const int other : part.waits_for) events_[size(other)]->wait(*worker_.stream);
    enqueue(part, wanted);
    if (part.awaited) events_[number]->record(*worker_.stream);
    worker_.stream = &stream_;
}

template <typename T>
void CudaExecutor<T>::enqueue(const StepPart& part, const Wanted& wanted) {
    const bool virials = wanted.virial || wanted.virials;
    switch (part.kind) {
        case StepPart::start:
            results_.begin(source_ == Source::batch ? nullptr : positions(),
                           in_given_order() ? cells_.placed_nodes() : PlacedNodes{}, graph_,
                           stream_);
            geometry_.run(stream_, graph_, worker_.failures);
            if (points_) points_->place(graph_.positions, stream_);
            if (wanted.gradient) clear_on_device(worker_.forces, own_forces_bytes(), stream_);
            break;
        case StepPart::forward:
            enqueue_layer(*part.stage, false, part.half);
            break;
        case StepPart::sum_energies:
            results_.sum_energies(*worker_.stream);
            break;
        case StepPart::start_backward:
            clear_on_device(worker_.edge_gradient, graph_.gradient_bytes(), *worker_.stream);
            break;
        case StepPart::backward:
            enqueue_layer(*part.stage, true, part.half);
            break;
        case StepPart::finish: {
            double* const forces = on_device(results_.forces);
            double* const each_virial = virials ? on_device(results_.virials) : nullptr;
            geometry_.assemble(stream_, graph_, worker_.edge_gradient, forces, each_virial);
            if (own_forces_bytes() > 0)
                geometry_.add_own(stream_, graph_, worker_.forces, forces, each_virial);
            if (virials) results_.sum_virials(stream_);
            break;
        }
        case StepPart::download:
            results_.download(wanted.virials    ? results_.virials
                              : wanted.forces   ? results_.forces
                              : wanted.gradient ? results_.virial_sums
                                                : results_.energy_sums,
                              in_given_order() ? cells_.placed_nodes().node : nullptr, stream_);
            break;
    }
}

template <typename T>
void CudaExecutor<T>::enqueue_layer(const Stage& stage, bool backward, Half half) {
    const BufferPlan& plan = plan_of(worker_.with_gradient);
    const std::size_t in_use = end_of_rows(plan, plan.local_in_use[stage.number]);
    worker_.free_memory = arena_.template as<char>() + in_use;
    worker_.free_bytes = arena_.bytes() - in_use;
    for (const int id : stage.zeroed) {
        if (half == Half::second) break;
        const std::int64_t width = program_.values[size(id)].rows.width;
        clear_on_device(worker_.gradients[size(id)] + graph_.num_local * width,
                        size((graph_.num_nodes - graph_.num_local) * width) * sizeof(T),
                        *worker_.stream);
    }
    worker_.half = half;
    Range nodes{0, graph_.num_nodes};
    if (half != Half::whole && !stage.exchanges())
        nodes = (half == Half::first) == backward ? Range{0, graph_.first_inner}
                                                  : Range{graph_.first_inner, graph_.num_local};
    this->run_op(stage, stage.ops[0], backward, worker_, nodes, graph_);
}

// -- results -------------------------------------------------------------------------------------

template <typename T>
void CudaExecutor<T>::finish(const Graph& graph, const Wanted& wanted) {
    const int failure = results_.flags_on_host()[0];
    if (failure != 0) {
        const auto node = [&](std::int32_t n) -> std::int64_t { return graph.node[size(n)]; };
        bad_argument({"atoms {} and {} are at the same place, expected a distance between them",
                      {node(graph_.sender_of(failure - 1, stream_)),
                       node(graph_.receiver_of(failure - 1))}});
    }
    if (results_.flags_on_host()[1] != 0) charges_too_large();
    energy_ = results_.energy();
    virial_ = wanted.virial ? results_.virial() : std::array<double, 9>{};
    if (wanted.descriptors != nullptr) store_descriptors(graph, wanted.descriptors);
}

template <typename T>
void CudaExecutor<T>::store(const BatchPart& part, const Results& results) {
    const auto copy = part.batch.on_device ? &copy_on_device : &copy_to_host;
    const auto rows = [&](double* target, const double* found, std::int64_t width) {
        if (target != nullptr)
            copy(target + width * part.first_node(), found, 8 * size(width * part.num_nodes()),
                 stream_);
    };
    double* const energies = on_device(results_.energies);
    double* const forces = on_device(results_.forces);
    double* const each_virial = on_device(results_.virials);
    rows(results.energies, energies, 1);
    rows(results.forces, forces, 3);
    rows(results.virials, each_virial, 9);
    const bool virials = results.virial != nullptr || results.virials != nullptr;
    const bool gradient = virials || results.forces != nullptr;
    batch_->store_sums(part, energies, gradient ? forces : nullptr, virials ? each_virial : nullptr,
                       results.energy, results.virial, stream_);
}

// Copies padded rows, one value after the other.
template <typename T>
void CudaExecutor<T>::download_descriptors(const Stage& stage) {
    std::int64_t column = 0;
    for (const int id : program_.descriptors) {
        const auto& value = program_.values[size(id)];
        if (value.last_writer() == stage.ops[0])
            copy_to_host(descriptors_.as<T>() + column * graph_.num_local, worker_.values[size(id)],
                         size(graph_.num_local * value.rows.width) * sizeof(T), stream_);
        column += value.rows.width;
    }
}

template <typename T>
void CudaExecutor<T>::store_descriptors(const Graph& graph, double* descriptors) const {
    std::int64_t before = 0, column = 0;
    for (const int id : program_.descriptors) {
        const Rows& rows = program_.values[size(id)].rows;
        for (std::int64_t n = 0; n < graph.num_local; ++n) {
            const std::int64_t to = graph.node[size(n)];
            double* out = descriptors + to * program_.descriptor_width + column;
            rows.unpad(descriptors_.as<T>() + before * graph.num_local + n * rows.width, out);
        }
        before += rows.width;
        column += rows.features;
    }
}

template class CudaExecutor<float>;
template class CudaExecutor<double>;

}  // namespace mdcg
