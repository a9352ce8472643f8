// Runs a program on a device: buffers, the order of layers, captured steps, results.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/batch.hpp"
#include "engine/cuda/cell_list.hpp"
#include "engine/cuda/cuda_op.hpp"
#include "engine/cuda/device_points.hpp"
#include "engine/cuda/edges/geometry.hpp"
#include "engine/cuda/ghosts.hpp"
#include "engine/cuda/step.hpp"
#include "engine/cuda/step_results.hpp"
#include "engine/executor.hpp"
#include "engine/program.hpp"

namespace mdcg {

template <typename T>
class CudaExecutor : public ExecutorOf<T, CudaOp<T>> {
public:
    // Creates the device's context. Throws DeviceError.
    CudaExecutor(const Program& program, std::vector<std::unique_ptr<CudaOp<T>>> ops,
                 const ModelInfo& info, const CudaTarget& place);

    // Loads kernels and weights, once. Throws EngineError (ErrorKind::compiler).
    void prepare();
    // Asks for all kernels, also those that only rare evaluations need, so that kernels() lists
    // them; works on NO_DEVICE.
    void ask_for_all_kernels();

    // Bytes that all buffers may take; 0: what the device has.
    void set_memory(std::size_t bytes) { memory_ = bytes; }

    // Lets operations take tensors that have changed with inputs of the system. Captured steps are
    // captured again, because addresses of matrices and numbers in arguments may have changed.
    void reload_tensors();
    // Drops the cached list of ghosts. All ranks call this together.
    void forget_ghosts() { ghosts_.forget_list(); }
    // Takes a new list, or other types. Must be called before the first run.
    void set_graph(const Graph& graph, bool reversed);  // see DeviceEdges::complete
    // `fresh`: the first call after set_graph.
    void set_shifts(const Graph& graph, const System& system, bool fresh);
    // Makes a new list on the device. Returns false if that is not possible (see
    // CudaCellList::grid). `graph` then has no edges, and positions() holds the points.
    bool make_list(const VerletSkin& watch, const ListPoints& points, Graph& graph);
    // The last `inner` local nodes of a new list receive nothing from ghosts; 0 if it is not
    // called.
    void set_inner(std::int64_t inner) { graph_.first_inner = graph_.num_local - inner; }
    void set_cell(const VerletSkin& watch) { cells_.set_cell(watch, stream_); }
    // Makes a new list of some systems of a batch, and takes their positions; positions() is not
    // read then. Throws the same errors as CudaBatch::make_list.
    void make_list(const BatchPart& part, double r_max, Graph& graph);
    // Stores results of the last run for such a list; see CudaBatch::store_sums.
    void store(const BatchPart& part, const Results& results);
    // Takes new points, after set_graph; see DevicePoints::upload.
    void set_points(const Points& points, const double* positions, double slack);
    // Positions of the next run, [num_nodes][3] in the order of the graph; after make_list in the
    // order given.
    double* positions() { return positions_.as<double>(); }

    struct Wanted {
        bool gradient = false, forces = false, virial = false, virials = false;
        double* descriptors = nullptr;  // [num_local][descriptor_width] in the given order
        const double *energy_weights = nullptr, *cell = nullptr, *waves_cell = nullptr;  // System
        const bool* periodic = nullptr;
        const double* inputs = nullptr;    // see StepRows
        const BatchPart* batch = nullptr;  // see CudaWorker
    };
    void run(const Graph& graph, Communicator* communicator, const Wanted& wanted);

    // The results below belong to the last run. They are in the order given if in_given_order(),
    // otherwise in the order of the graph. Forces and virials are valid if they were wanted.
    bool in_given_order() const { return source_ == Source::cells; }
    double energy() const { return energy_; }
    const double* energies() const { return results_.on_host(results_.energies); }  // [num_local]
    const double* forces() const { return results_.on_host(results_.forces); }    // [num_nodes][3]
    const double* virials() const { return results_.on_host(results_.virials); }  // [num_nodes][9]
    const std::array<double, 9>& virial() const { return virial_; }

    // times() belongs to the last run that was not captured.
    int replays() const { return replays_; }  // number of runs of captured steps
    // Rows that the last run's exchanges copied, between device and host or from device to device.
    std::size_t exchanged_bytes() const { return exchanged_; }
    bool from_device_to_device() const { return ghosts_.from_device_to_device(); }
    std::size_t bytes() const;  // on the device
    const CudaKernels& kernels() const { return kernels_; }

private:
    // What is between two direct parts is captured in the second evaluation, and again in the first
    // one after each new list.
    struct Step {
        std::vector<StepPart> parts;
        std::vector<std::unique_ptr<CapturedGraph>> segments;
        bool stale = true;  // the segments have old addresses or sizes
        int runs = 0;
    };
    double* on_device(const StepResults::Part& part) const {
        return results_.on_device<double>(part);
    }
    std::size_t own_forces_bytes() const {
        const bool any = program_.reads_points || program_.reads_system;
        return any ? 72 * static_cast<std::size_t>(graph_.num_local) + 8 : 0;
    }
    const BufferPlan& plan_of(bool gradient) const {
        if (!gradient) return program_.energy_plan;
        return small_ ? program_.stream_plan : program_.gradient_plan;
    }
    Step& step_of(const Wanted& wanted, bool communicates);
    void on_new_list();
    // Before a new list: reserves memory for results of nodes and positions of points.
    void reserve_results(std::int64_t local, std::int64_t nodes, std::int64_t points);
    void reserve();
    // Throws MemoryError if so many bytes are more than may be taken.
    void check_memory(std::size_t needed) const;
    std::size_t allowed_memory() const;
    // Returns the aligned number of bytes that the total rows, the chunk rows and the first
    // `local_width` items of local rows take.
    static std::size_t bytes_of_rows(const BufferPlan& plan, std::int64_t local_width,
                                     std::int64_t local, std::int64_t nodes);
    std::size_t end_of_rows(const BufferPlan& plan, std::int64_t local_width) const {
        return bytes_of_rows(plan, local_width, graph_.num_local, graph_.num_nodes);
    }
    const double* upload_energy_weights(const Graph& graph, const Wanted& wanted);
    void enqueue_on_stream(const std::vector<StepPart>& parts, std::size_t number,
                           const Wanted& wanted);
    void enqueue(const StepPart& part, const Wanted& wanted);
    void enqueue_layer(const Stage& stage, bool backward, Half half);
    void run_direct(Step& step, const Wanted& wanted);
    void run_captured(Step& step, const Wanted& wanted);
    void download_descriptors(const Stage& stage);
    void finish(const Graph& graph, const Wanted& wanted);
    void store_descriptors(const Graph& graph, double* descriptors) const;
    // Whether operations run while rows of ghosts travel. Half of a small system leaves the device
    // idle for longer than the rows travel.
    bool overlaps() const {
        return !small_ && graph_.num_local - graph_.first_inner >= DeviceEdges::fewest_filling;
    }
    void forget_steps() {
        for (auto& [kind, step] : steps_) step.stale = true;
    }

    using ExecutorOf<T, CudaOp<T>>::program_;
    using ExecutorOf<T, CudaOp<T>>::ops_;
    using ExecutorOf<T, CudaOp<T>>::times_;
    int num_types_;
    KernelStreams streams_;
    const DeviceStream& stream_;             // stream 0
    std::deque<DeviceStream> side_streams_;  // streams 1, 2, .. of captured steps
    CudaKernels kernels_;
    DeviceEdges graph_;
    CudaCellList cells_;
    // True if the list has so few edges that single kernels leave the device partly idle. The parts
    // of a step are then spread over streams. (With 437,000 edges, simultaneous kernels compete for
    // memory and cache, and a step takes 1 to 2 % longer.) False for programs that read points:
    // their operations add to forces and to rows that are not values of the program, so that their
    // dependencies are unknown.
    bool small_ = false;
    // What made the list.
    enum class Source { graph, cells, batch } source_ = Source::graph;
    std::unique_ptr<CudaBatch> batch_;  // made by the first batch
    CudaGeometry<T> geometry_;
    CudaGhosts<T> ghosts_;
    std::unique_ptr<DevicePoints> points_;  // null: the program reads edges
    StepResults results_;
    bool prepared_ = false;
    std::size_t memory_ = 0;

    DeviceMemory arena_, edge_gradient_, energy_weights_;
    // Forces [num_local][3] and virials [num_local][6] of operations on points or the system.
    DeviceMemory own_forces_;
    PinnedMemory positions_, descriptors_;
    CudaWorker<T> worker_;
    std::map<int, Step> steps_;    // by kind of evaluation
    std::int64_t step_nodes_ = 0;  // local nodes of the first list that steps_ were made for

    double energy_ = 0;
    std::array<double, 9> virial_{};
    std::vector<std::unique_ptr<DeviceEvent>> events_;
    int replays_ = 0;
    std::size_t exchanged_ = 0;
};

}  // namespace mdcg
