#include "engine/cuda/executor.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <tuple>

#include "core/integers.hpp"
#include "engine/error.hpp"
#include "kernels/row_sums.hpp"

namespace mdcg {

namespace {

constexpr std::int64_t SUM_ROWS = 1024;  // of a block
// Of scratch for the edges of chunks, which must have enough receivers to fill all multiprocessors
// with blocks.
template <typename T>
constexpr std::size_t CHUNK_BYTES = std::size_t(1) << (sizeof(T) == 4 ? 29 : 30);

std::int64_t blocks_of(std::int64_t rows) { return (rows + SUM_ROWS - 1) / SUM_ROWS; }

}  // namespace

template <typename T>
CudaExecutor<T>::CudaExecutor(const Program& program, std::vector<std::unique_ptr<CudaOp<T>>> ops,
                              const ModelInfo& info, const CudaTarget& place)
    : ExecutorOf<T, CudaOp<T>>(program, std::move(ops)),
      num_types_(info.num_types()),
      lanes_(place.device),
      stream_(lanes_[0]),
      second_stream_(place.device),
      kernels_(place, sizeof(T)),
      graph_(kernels_),
      cells_(kernels_),
      geometry_(kernels_, info.r_max, info.flip_edges),
      ghosts_(kernels_),
      sum_(kernels_.fixed("row_sums.cuh", "sum_rows")),
      arena_(place.device),
      edge_gradient_(place.device),
      scratch_(place.device),
      outputs_(place.device),
      energy_weights_(place.device),
      positions_(place.device),
      results_(place.device),
      descriptors_(place.device) {
    worker_.stream = &stream_;
    worker_.lanes = &lanes_;
    worker_.edges = &graph_;
    worker_.ghosts = &ghosts_;
    worker_.scratch_memory = &scratch_;
    if (program.reads_points) points_ = std::make_unique<DevicePoints>(kernels_);
    worker_.points = points_.get();
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
std::size_t CudaExecutor<T>::bytes() const {
    return graph_.bytes() + cells_.bytes() + arena_.bytes() + edge_gradient_.bytes() +
           scratch_.bytes() + outputs_.bytes() + energy_weights_.bytes() + ghosts_.bytes() +
           (points_ ? points_->bytes() : 0) + (batch_ ? batch_->bytes() : 0);
}

// -- lists and buffers ---------------------------------------------------------------------------

template <typename T>
void CudaExecutor<T>::set_graph(const Graph& graph) {
    forget_steps();
    graph_.chunk_edges = chunk_edges();
    graph_.upload(graph, num_types_, stream_);
    source_ = Source::graph;
    take_list(graph);
}

template <typename T>
bool CudaExecutor<T>::make_list(const VerletSkin& watch, const ListPoints& points, Graph& graph) {
    graph_.chunk_edges = chunk_edges();
    if (!cells_.make(watch, points, num_types_, stream_, graph_, graph.node)) return false;
    forget_steps();
    graph.forget_edges(points.num_local, points.num_nodes, graph_.num_edges);
    source_ = points.copies ? Source::graph : Source::cells;
    take_list(graph);
    return true;
}

template <typename T>
void CudaExecutor<T>::make_list(const BatchPart& part, double r_max, Graph& graph) {
    if (batch_ == nullptr) {
        batch_ = std::make_unique<CudaBatch>(kernels_);
        kernels_.load();
    }
    graph_.chunk_edges = chunk_edges();
    batch_->make_list(part, r_max, num_types_, stream_, graph_, graph.node);
    forget_steps();
    graph.forget_edges(part.num_nodes(), part.num_nodes(), graph_.num_edges);
    source_ = Source::batch;
    take_list(graph);
}

template <typename T>
void CudaExecutor<T>::set_points(const Points& points, const double* positions, double slack) {
    forget_steps();
    points_->upload(points, positions, graph_.num_local, slack, stream_);
}

template <typename T>
void CudaExecutor<T>::take_list(const Graph& graph) {
    // Of lists of one system the steps are the same but for addresses and sizes. Another system's
    // first evaluation goes layer by layer, for times of that system.
    if (8 * std::abs(graph_.num_local - step_nodes_) > step_nodes_) {
        steps_.clear();
        step_nodes_ = graph_.num_local;
    }
    graph_.gradient_lanes = 1;
    for (const auto& op : ops_) {
        op->take_list(graph_, stream_);
        graph_.gradient_lanes = std::max(graph_.gradient_lanes, op->gradient_lanes());
    }
    reserve(graph);
}

template <typename T>
void CudaExecutor<T>::set_shifts(const Graph& graph, const System& system, bool fresh) {
    const auto addresses = [&] {
        return std::make_tuple(graph_.shift, graph_.image, graph_.table);
    };
    const auto before = addresses();
    graph_.upload_shifts(graph, system, fresh, stream_);
    if (addresses() != before) forget_steps();
}

// As many as fit into CHUNK_BYTES.
template <typename T>
std::int64_t CudaExecutor<T>::chunk_edges() {
    if (chunk_edges_ > 0) return chunk_edges_;
    DeviceEdges one(kernels_);
    one.longest_chunk = narrow(DeviceEdges::FEWEST_CHUNK_EDGES);
    const std::size_t fewest = scratch_bytes(one);
    const auto times = static_cast<std::int64_t>(CHUNK_BYTES<T> / std::max<std::size_t>(fewest, 1));
    chunk_edges_ = std::min(std::max<std::int64_t>(times, 1) * DeviceEdges::FEWEST_CHUNK_EDGES,
                            DeviceEdges::most_chunk_edges);
    return chunk_edges_;
}

template <typename T>
std::size_t CudaExecutor<T>::scratch_bytes(const DeviceEdges& graph) const {
    std::size_t most = 0;
    for (const auto& op : ops_) most = std::max(most, op->scratch_bytes(graph));
    return most;
}

// What both kinds of evaluation need at most, so that captured steps keep their addresses.
template <typename T>
void CudaExecutor<T>::reserve(const Graph& graph) {
    const std::int64_t local = graph.num_local, nodes = graph.num_nodes;
    std::size_t rows = 0;
    for (const BufferPlan* plan : {&plan_of(false), &plan_of(true)})
        rows = std::max(rows, size(plan->local_width * local +
                                   (plan->total_width + plan->chunk_width) * nodes));
    arena_.grow(rows * sizeof(T));
    edge_gradient_.grow(std::max<std::size_t>(1, graph_.gradient_bytes()));
    scratch_.grow(scratch_bytes(graph_));
    std::size_t end = 0;
    const auto part = [&](std::int64_t count) {
        const Result result{end, 8 * size(count)};
        end += (result.bytes + 255) / 256 * 256;
        return result;
    };
    failures_ = part(1);  // two flags
    energy_parts_ = part(blocks_of(local));
    virial_parts_ = part(9 * blocks_of(nodes));
    forces_ = part(3 * nodes);
    energies_ = part(local);
    virials_ = part(9 * nodes);
    outputs_.grow(end);
    clear_on_device(outputs_.as<char>(), end, stream_);  // what is between them is copied as well
    results_.grow(end);
    positions_.grow(24 * size(nodes) + 1);
    worker_.types = graph_.types;
    worker_.energies = on_device<double>(energies_);
    worker_.failures = on_device<int>(failures_);
    worker_.short_edges = worker_.failures + 1;
}

// -- steps ---------------------------------------------------------------------------------------

template <typename T>
typename CudaExecutor<T>::Step& CudaExecutor<T>::step_of(const Wanted& wanted, bool communicates) {
    const bool virials = wanted.virial || wanted.virials;
    const int kind = wanted.gradient + 2 * virials + 4 * communicates +
                     8 * (wanted.descriptors != nullptr) + 16 * is_small();
    const auto [found, made] = steps_.try_emplace(kind);
    Step& step = found->second;
    if (!made) return step;
    step.parts = parts_of_step(program_, wanted.gradient, communicates, is_small());
    while (events_.size() < step.parts.size() + 1)
        events_.push_back(std::make_unique<DeviceEvent>(stream_.device()));
    return step;
}

template <typename T>
void CudaExecutor<T>::run(const Graph& graph, Communicator* communicator, const Wanted& wanted) {
    const BufferPlan& plan = plan_of(wanted.gradient);
    T* const local = arena_.template as<T>();
    T* const total = local + plan.local_width * graph_.num_local;
    this->bind(plan,
               {local, total, total + plan.total_width * graph_.num_nodes, graph_.num_local,
                graph_.num_nodes},
               worker_);
    worker_.with_gradient = wanted.gradient;
    worker_.exact = false;
    worker_.communicator = communicator;
    if (communicator != nullptr && !ghosts_.has_list())
        ghosts_.take_list(*communicator, program_.max_exchanged_width, graph_, stream_);
    worker_.edge_gradient = wanted.gradient ? edge_gradient_.template as<T>() : nullptr;
    worker_.energy_weights = upload_energy_weights(graph, wanted);
    if (wanted.descriptors != nullptr) {
        std::int64_t width = 0;
        for (const int id : program_.descriptors) width += program_.values[size(id)].rows.width;
        descriptors_.grow(size(graph_.num_local * width) * sizeof(T));
    }
    if (source_ != Source::batch)
        copy_to_device(source_ == Source::cells ? cells_.given() : graph_.positions, positions(),
                       24 * size(graph_.num_nodes), stream_);
    Step& step = step_of(wanted, communicator != nullptr);
    ++step.runs;
    if (step.runs == 1 || wanted.descriptors != nullptr || wanted.energy_weights != nullptr)
        run_direct(step, wanted);
    else
        run_captured(step, wanted);
    download(wanted);
    if (repeat_exact(communicator)) {  // some edge is too short for a table
        prepare_exact();
        worker_.exact = true;
        run_direct(step, wanted);
        download(wanted);
    }
    exchanged_ = ghosts_.take_copied();
    finish(graph, wanted);
}

// Returns where they are on the device, or null.
template <typename T>
const double* CudaExecutor<T>::upload_energy_weights(const Graph& graph, const Wanted& wanted) {
    if (wanted.energy_weights == nullptr || graph_.num_local == 0) return nullptr;
    std::vector<double> weights;
    graph.gather_local(wanted.energy_weights, weights);
    energy_weights_.grow(weights.size() * sizeof(double));
    energy_weights_.upload(weights.data(), weights.size() * sizeof(double), stream_);
    stream_.synchronize();
    return energy_weights_.as<const double>();
}

// Of processes that exchange rows either all repeat a step, or none.
template <typename T>
bool CudaExecutor<T>::repeat_exact(Communicator* communicator) {
    const bool mine = on_host_flags()[1] != 0;
    if (communicator == nullptr) return mine;
    if (communicator->has_any()) return communicator->any(mine);
    if (mine)
        bad_argument(
            "an edge is shorter than the tables of the radial networks, and the "
            "communicator has no function any, which lets all processes repeat the "
            "step without tables: set it");
    return false;
}

// What only evaluations without tables need, which are rare.
template <typename T>
void CudaExecutor<T>::prepare_exact() {
    if (prepared_exact_) return;
    for (const auto& op : ops_) op->prepare_exact(kernels_, stream_);
    kernels_.load();
    for (const auto& op : ops_) op->take_list(graph_, stream_);
    stream_.synchronize();
    prepared_exact_ = true;
}

// Layer by layer, with the time of each.
template <typename T>
void CudaExecutor<T>::run_direct(Step& step, const Wanted& wanted) {
    const void* const scratch = scratch_.data();
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
        (part.kind == StepPart::forward ? time.forward : time.backward) =
            events_[i + 1]->since(*events_[i]);
    }
    // captured steps hold the old address of the scratch memory
    if (scratch_.data() != scratch) forget_steps();
}

template <typename T>
void CudaExecutor<T>::run_captured(Step& step, const Wanted& wanted) {
    std::size_t segment = 0;
    for (std::size_t i = 0; i < step.parts.size(); ++i) {
        if (step.parts[i].exchange) {
            enqueue(step.parts[i], wanted);
            continue;
        }
        std::size_t end = i;
        while (end < step.parts.size() && !step.parts[end].exchange) ++end;
        if (step.stale) {
            if (segment == step.segments.size())
                step.segments.push_back(std::make_unique<CapturedGraph>());
            CapturedGraph& graph = *step.segments[segment];
            try {
                graph.begin(stream_);
                for (std::size_t k = i; k < end; ++k) capture(step.parts, k, wanted);
                graph.end(stream_);
            } catch (...) {
                worker_.stream = &stream_;
                graph.abandon(stream_);
                throw;
            }
        }
        step.segments[segment++]->replay(stream_);
        i = end - 1;
    }
    // after an exception before this line, the next run captures all segments again
    step.stale = false;
    ++replays_;
}

// Enqueues a part on its own stream, inside a capture.
template <typename T>
void CudaExecutor<T>::capture(const std::vector<StepPart>& parts, std::size_t number,
                              const Wanted& wanted) {
    const StepPart& part = parts[number];
    worker_.stream = part.beside ? &second_stream_ : &stream_;
    if (part.after >= 0) events_[size(part.after)]->wait(*worker_.stream);
    enqueue(part, wanted);
    events_[number]->record(*worker_.stream);
    worker_.stream = &stream_;
}

template <typename T>
void CudaExecutor<T>::enqueue(const StepPart& part, const Wanted& wanted) {
    const bool virials = wanted.virial || wanted.virials;
    switch (part.kind) {
        case StepPart::start:
            clear_on_device(on_device<void>(failures_), failures_.bytes, stream_);
            clear_on_device(on_device<void>(energies_), energies_.bytes, stream_);
            if (source_ == Source::cells) cells_.place(stream_);
            geometry_.run(stream_, graph_, worker_.failures);
            if (points_) points_->place(graph_.positions, stream_);
            if (points_ && wanted.gradient) points_->clear_forces(stream_);
            break;
        case StepPart::forward:
            enqueue_layer(*part.stage, false);
            break;
        case StepPart::sum_energies:
            sum_rows(energies_, graph_.num_local, 1, energy_parts_);
            break;
        case StepPart::start_backward:
            clear_on_device(worker_.edge_gradient, graph_.gradient_bytes(), *worker_.stream);
            break;
        case StepPart::backward:
            enqueue_layer(*part.stage, true);
            break;
        case StepPart::finish:
            geometry_.assemble(stream_, graph_, worker_.edge_gradient, on_device<double>(forces_),
                               virials ? on_device<double>(virials_) : nullptr);
            if (points_)
                points_->add_forces(on_device<double>(forces_),
                                    virials ? on_device<double>(virials_) : nullptr, stream_);
            if (virials) sum_rows(virials_, graph_.num_nodes, 9, virial_parts_);
            break;
    }
}

template <typename T>
void CudaExecutor<T>::enqueue_layer(const Stage& stage, bool backward) {
    for (const int id : stage.zeroed) {
        const std::int64_t width = program_.values[size(id)].rows.width;
        clear_on_device(worker_.gradients[size(id)] + graph_.num_local * width,
                        size((graph_.num_nodes - graph_.num_local) * width) * sizeof(T),
                        *worker_.stream);
    }
    this->run_op(stage, stage.ops[0], backward, worker_, {0, graph_.num_nodes}, graph_);
}

template <typename T>
void CudaExecutor<T>::sum_rows(const Result& rows, std::int64_t count, int width,
                               const Result& out) {
    const RowSumArguments arguments{on_device<double>(rows), on_device<double>(out), count, width};
    sum_.launch(*worker_.stream, blocks_of(count), 256, arguments);
}

// -- results -------------------------------------------------------------------------------------

template <typename T>
void CudaExecutor<T>::download(const Wanted& wanted) {
    char* const host = results_.as<char>();
    const auto download = [&](const Result& first, const Result& last) {
        copy_to_host(host + first.offset, on_device<char>(first),
                     last.offset + last.bytes - first.offset, stream_);
    };
    // one copy of what nearly everybody wants
    download(failures_, wanted.forces ? forces_ : wanted.gradient ? virial_parts_ : energy_parts_);
    if (wanted.energies) download(energies_, energies_);
    if (wanted.virials) download(virials_, virials_);
    stream_.synchronize();
}

template <typename T>
void CudaExecutor<T>::finish(const Graph& graph, const Wanted& wanted) {
    const int failure = on_host_flags()[0];
    if (failure != 0) {
        const auto node = [&](std::int32_t n) -> std::int64_t { return graph.node[size(n)]; };
        bad_argument({"atoms {} and {} are at the same place, expected a distance between them",
                      {node(graph_.sender_of(failure - 1, stream_)),
                       node(graph_.receiver_of(failure - 1))}});
    }
    energy_ = 0;
    for (std::int64_t b = 0; b < blocks_of(graph_.num_local); ++b)
        energy_ += on_host(energy_parts_)[b];
    virial_.fill(0);
    if (wanted.virial)
        for (std::int64_t b = 0; b < blocks_of(graph_.num_nodes); ++b)
            for (std::size_t i = 0; i < 9; ++i)
                virial_[i] += on_host(virial_parts_)[9 * size(b) + i];
    if (wanted.descriptors != nullptr) store_descriptors(graph, wanted.descriptors);
}

template <typename T>
void CudaExecutor<T>::store(const BatchPart& part, const Results& results) {
    const auto copy = part.batch.on_device ? &copy_on_device : &copy_to_host;
    const auto rows = [&](double* target, const Result& found, std::int64_t width) {
        if (target != nullptr)
            copy(target + width * part.first_node(), on_device<double>(found),
                 8 * size(width * part.num_nodes()), stream_);
    };
    rows(results.energies, energies_, 1);
    rows(results.forces, forces_, 3);
    rows(results.virials, virials_, 9);
    const bool virials = results.virial != nullptr || results.virials != nullptr;
    const bool gradient = virials || results.forces != nullptr;
    batch_->store_sums(
        part, on_device<double>(energies_), gradient ? on_device<double>(forces_) : nullptr,
        virials ? on_device<double>(virials_) : nullptr, results.energy, results.virial, stream_);
}

// Rows as they are, one value after the other.
template <typename T>
void CudaExecutor<T>::download_descriptors(const Stage& stage) {
    std::int64_t column = 0;
    for (const int id : program_.descriptors) {
        const auto& value = program_.values[size(id)];
        if (value.writer == stage.ops[0])
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
