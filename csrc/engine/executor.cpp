#include "engine/executor.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/integers.hpp"
#include "core/interrupt.hpp"
#include "core/threads.hpp"
#include "engine/backend/cpu/parallel.hpp"

namespace mdcg {

namespace {

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

}  // namespace

// -- memory --------------------------------------------------------------------------------------

Arena::~Arena() { release(); }

void Arena::release() {
    if (data_ != nullptr && mapped_) munmap(data_, bytes_);
    if (data_ != nullptr && !mapped_) std::free(data_);
    data_ = nullptr;
    bytes_ = 0;
}

char* Arena::reserve(std::size_t bytes) {
    if (bytes <= bytes_) return data_;
    constexpr std::size_t PAGE = std::size_t(1) << 21;
    release();
    const std::size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    void* map = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mapped_ = map != MAP_FAILED;
    if (mapped_)
        madvise(map, whole, MADV_HUGEPAGE);  // it may fail where the system has no large pages
    else                                     // malloc may still have freed memory
        map = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (map == nullptr) throw std::bad_alloc();
    data_ = static_cast<char*>(map);
    bytes_ = mapped_ ? whole : bytes;
    return data_;
}

template <typename T>
char* Worker<T>::scratch(std::size_t bytes) {
    if (memory_.size() < bytes + 64) memory_.resize(bytes + 64);
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    return memory_.data() + (64 - address % 64) % 64;
}
template class Worker<float>;
template class Worker<double>;

template <typename T>
void Executor<T>::reserve(const Graph& graph, const BufferPlan& plan, int threads) {
    // Growing buffers get room for more nodes, because the number of ghosts changes between steps.
    const auto grow = [](Arena& arena, std::int64_t width, std::int64_t rows) {
        const std::size_t wanted = size(width * rows) * sizeof(T);
        if (wanted > arena.bytes()) arena.reserve(wanted + (arena.bytes() > 0 ? wanted / 8 : 0));
    };
    grow(local_, plan.local_width, graph.num_local);
    grow(total_, plan.total_width, graph.num_nodes);
    if (static_cast<int>(seconds_.size()) < threads) {  // seconds_ is resized last
        workers_.resize(size(threads));
        chunks_.resize(size(threads));
        seconds_.resize(size(threads));
    }
    const std::size_t chunk =
        size(std::max(program_.energy_plan.chunk_width, program_.gradient_plan.chunk_width) *
             graph.nodes_per_block);
    for (AlignedArray<T>& array : chunks_)
        if (array.size() < chunk) array.resize(chunk);
    for (std::vector<double>& seconds : seconds_) seconds.assign(2 * program_.ops.size(), 0.0);
    energies_.assign(size(graph.num_local), 0.0);
}

template <typename T>
void Executor<T>::release() {
    local_.release();
    total_.release();
    workers_ = std::vector<Worker<T>>();
    chunks_ = std::vector<AlignedArray<T>>();
    seconds_ = std::vector<std::vector<double>>();
    energies_ = std::vector<double>();
    energy_weights_ = std::vector<double>();
    edge_gradient_ = std::vector<T>();
    own_forces_ = std::vector<double>();
    point_virials_ = std::vector<double>();
}

template <typename T>
void Executor<T>::bind_workers(const Graph& graph, const BufferPlan& plan) {
    plan_ = &plan;
    for (std::size_t t = 0; t < workers_.size(); ++t) {
        Worker<T>& worker = workers_[t];
        worker.graph = &graph;
        worker.types = graph.types.data();
        worker.energies = energies_.data();
        worker.thread = static_cast<int>(t);
        this->bind(plan,
                   {reinterpret_cast<T*>(local_.data()), reinterpret_cast<T*>(total_.data()),
                    nullptr, graph.num_local, graph.num_nodes},
                   worker);
    }
}

template <typename T>
std::size_t Executor<T>::bytes() const {
    std::size_t total = local_.bytes() + total_.bytes() + edge_gradient_.capacity() * sizeof(T) +
                        energies_.capacity() * sizeof(double);
    for (const AlignedArray<T>& chunk : chunks_) total += chunk.size() * sizeof(T);
    return total;
}

// -- stages --------------------------------------------------------------------------------------

template <typename T>
void Executor<T>::run(const Graph& graph, const Points* points, const System& system,
                      Communicator* communicator, bool with_gradient, double* descriptors,
                      int threads) {
    const BufferPlan& plan = with_gradient ? program_.gradient_plan : program_.energy_plan;
    reserve(graph, plan, threads);
    bind_workers(graph, plan);
    const bool weighted = system.energy_weights != nullptr;
    if (weighted) graph.gather_local(system.energy_weights, energy_weights_);
    for (Worker<T>& worker : workers_) {
        worker.with_gradient = with_gradient;
        worker.communicator = communicator;
        worker.edge_gradient = nullptr;
        worker.points = points;
        worker.positions = graph.positions();
        worker.cell = system.cell;
        worker.periodic = system.periodic;
        worker.inputs = system.inputs;
        worker.waves_cell = system.waves_cell;
        worker.threads = threads;
        worker.energy_weights = weighted ? energy_weights_.data() : nullptr;
    }
    for (const auto& op : ops_) op->begin(graph);
    for (const Stage& stage : program_.forward_stages)
        run_stage(stage, false, graph, descriptors, threads);
    if (with_gradient) {
        // At least one item, because a pointer that is not null tells operations that there is a
        // backward pass.
        edge_gradient_.resize(std::max<std::size_t>(1, size(3 * graph.num_edges)));
        T* const gradient = edge_gradient_.data();
        share(threads, 3 * graph.num_edges, [&](std::int64_t i, int) { gradient[i] = T(0); });
        if (program_.reads_points || program_.reads_system)
            own_forces_.assign(size(3 * graph.num_local), 0.0);
        if (program_.reads_points) point_virials_.assign(size(6 * graph.num_local), 0.0);
        system_virial_.fill(0.0);
        for (Worker<T>& worker : workers_) {
            worker.edge_gradient = gradient;
            worker.forces = own_forces_.data();
            worker.virials = point_virials_.data();
            worker.virial = system_virial_.data();
        }
        for (const Stage& stage : program_.backward_stages)
            run_stage(stage, true, graph, nullptr, threads);
    }
    times_.assign(program_.ops.size(), {});
    for (const std::vector<double>& seconds : seconds_)
        for (std::size_t i = 0; i < times_.size(); ++i) {
            // these operations run on one worker, and use all threads within the call
            const OpSpec& op = *program_.ops[i];
            const double all = op.reads_points() || op.reads_system() ? 1.0 : threads;
            times_[i].forward += 1e3 * seconds[2 * i] / all;
            times_[i].backward += 1e3 * seconds[2 * i + 1] / all;
        }
}

template <typename T>
void Executor<T>::run_stage(const Stage& stage, bool backward, const Graph& graph,
                            double* descriptors, int threads) {
    for (const int id : stage.zeroed) {
        const std::int64_t width = program_.values[size(id)].rows.width;
        T* const first = workers_[0].gradients[size(id)] + graph.num_local * width;
        share(threads, graph.num_nodes - graph.num_local,
              [&](std::int64_t n, int) { std::fill_n(first + n * width, width, T(0)); });
    }
    if (is_single_call(stage.space)) {
        run_chunk(stage, backward, {0, graph.num_local}, workers_[0], seconds_[0].data());
        return;
    }
    const std::int64_t rows = stage.rows(stage.space, graph.num_local, graph.num_nodes);
    const std::int64_t step = graph.nodes_per_block;
    FirstError error;
    share_in_turns(threads, ceil_div(rows, step), 1, [&](std::int64_t c, int number) {
        if (error.failed()) return;
        const auto thread = size(number);
        Worker<T>& worker = workers_[thread];
        try {
            if (number == 0) poll_interrupt();
            const Range range{c * step, std::min(rows, (c + 1) * step)};
            T* const chunk = chunks_[thread].data();
            const auto place = [&](const std::vector<BufferSlot>& slots, std::vector<T*>& rows_of) {
                for (std::size_t id = 0; id < slots.size(); ++id)
                    if (slots[id].kind == BufferSlot::chunk)
                        rows_of[id] = chunk + slots[id].offset * step -
                                      range.begin * program_.values[id].rows.width;
            };
            place(plan_->values, worker.values);
            place(plan_->gradients, worker.gradients);
            run_chunk(stage, backward, range, worker, seconds_[thread].data());
            if (descriptors != nullptr) copy_descriptors(stage, range, worker, graph, descriptors);
        } catch (...) {
            error.keep();
        }
    });
    error.rethrow();
}

template <typename T>
void Executor<T>::run_chunk(const Stage& stage, bool backward, Range range, Worker<T>& worker,
                            double* seconds) {
    double before = now();
    for (const int i : stage.ops) {
        this->run_op(stage, i, backward, worker, range, *worker.graph);
        const double after = now();
        seconds[2 * i + (backward ? 1 : 0)] += after - before;
        before = after;
    }
}

template <typename T>
void Executor<T>::copy_descriptors(const Stage& stage, Range range, const Worker<T>& worker,
                                   const Graph& graph, double* descriptors) const {
    std::int64_t column = 0;
    for (const int id : program_.descriptors) {
        const auto& value = program_.values[size(id)];
        if (std::find(stage.ops.begin(), stage.ops.end(), value.last_writer()) != stage.ops.end())
            for (std::int64_t n = range.begin; n < std::min(range.end, graph.num_local); ++n) {
                double* out =
                    descriptors +
                    static_cast<std::int64_t>(graph.node[size(n)]) * program_.descriptor_width +
                    column;
                value.rows.unpad(worker.values[size(id)] + n * value.rows.width, out);
            }
        column += value.rows.features;
    }
}

// -- forces --------------------------------------------------------------------------------------

// Adds the results of operations on points or the system for one node.
template <typename T>
void Executor<T>::add_own_forces(std::int64_t node, std::int64_t to, double* forces,
                                 double* virials) const {
    static constexpr std::size_t PART[9] = {0, 3, 4, 3, 1, 5, 4, 5, 2};  // xx yy zz xy xz yz
    for (std::int64_t d = 0; forces != nullptr && d < 3; ++d)
        forces[3 * to + d] += own_forces_[size(3 * node + d)];
    for (std::int64_t i = 0; virials != nullptr && program_.reads_points && i < 9; ++i)
        virials[9 * to + i] += point_virials_[size(6 * node) + PART[i]];
}

// Each node sums first the edges that it receives, then the edges that it sends, in the order of
// the graph.
template <typename T>
void Executor<T>::assemble(const Graph& graph, double* forces, double* virials, int threads) const {
    const std::int64_t step = graph.nodes_per_block;
    share_in_turns(threads, graph.num_blocks(), 4, [&](std::int64_t b, int) {
        const std::int64_t end = std::min(graph.num_nodes, (b + 1) * step);
        const auto add = [&](std::int64_t e, std::int64_t n, double sign) {
            const T* g = &edge_gradient_[size(3 * e)];
            const std::int64_t to = graph.node[size(n)];
            if (forces != nullptr)
                for (int d = 0; d < 3; ++d) forces[3 * to + d] -= sign * static_cast<double>(g[d]);
            if (virials == nullptr) return;
            const double* v = &graph.vec[size(3 * e)];
            // only the symmetric part: the rest vanishes in the sum over all nodes
            for (int c = 0; c < 3; ++c)
                for (int d = 0; d < 3; ++d)
                    virials[9 * to + 3 * c + d] -= 0.25 * (v[c] * static_cast<double>(g[d]) +
                                                           v[d] * static_cast<double>(g[c]));
        };
        for (std::int64_t n = b * step; n < end; ++n) {
            const std::int64_t to = graph.node[size(n)];
            if (forces != nullptr) std::fill(forces + 3 * to, forces + 3 * to + 3, 0.0);
            if (virials != nullptr) std::fill(virials + 9 * to, virials + 9 * to + 9, 0.0);
            if (n >= graph.num_local) continue;
            if (!own_forces_.empty()) add_own_forces(n, to, forces, virials);
            for (std::int64_t e = graph.row_ptr[size(n)]; e < graph.row_ptr[size(n) + 1]; ++e)
                add(e, n, 1.0);
        }
        for (std::int64_t i = graph.block_ptr[size(b)]; i < graph.block_ptr[size(b) + 1]; ++i) {
            const std::int64_t e = graph.block_edge[size(i)];
            add(e, graph.sender[size(e)], -1.0);
        }
    });
}

template class Executor<float>;
template class Executor<double>;

}  // namespace mdcg
