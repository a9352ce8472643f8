#include "core/integers.hpp"
#include "engine/cuda/cuda_op.hpp"
#include "engine/cuda/device_points.hpp"
#include "engine/cuda/ghosts.hpp"
#include "engine/ops/pair/coordination.hpp"

namespace mdcg {

namespace {

constexpr const char* TEXT = "points.cuh";
constexpr int COLUMN_THREADS = 256;
constexpr int ROW_BYTES = 16;  // the shortest row that ghosts exchange

template <typename T>
class CudaCoordination : public CudaOp<T> {
public:
    explicit CudaCoordination(const CoordinationSpec& spec) : spec_(spec) {}

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        forward_ = kernels.fixed(TEXT, "coordination_forward");
        backward_ = kernels.fixed(TEXT, "coordination_backward");
        take_column_ = kernels.fixed(TEXT, "take_column");
        radii_.upload(spec_.radii, stream);
    }
    // Derivatives by coordination numbers, of all nodes, in rows that can be exchanged.
    std::size_t scratch_bytes(const DeviceEdges& graph) const override {
        return std::max<std::size_t>(1, size(graph.num_nodes)) * ROW_BYTES;
    }
    void forward(CudaWorker<T>& worker, Range) const override {
        run(forward_, worker, arguments(worker));
    }
    void backward(CudaWorker<T>& worker, Range) const override {
        const DeviceEdges& graph = *worker.edges;
        auto* const slopes = reinterpret_cast<double*>(worker.device_scratch(scratch_bytes(graph)));
        const ColumnArguments<T> column{worker.gradient(spec_.out), slopes, graph.num_local,
                                        spec_.out.rows.width, ROW_BYTES / int(sizeof(double))};
        take_column_.launch(*worker.stream, ceil_div(graph.num_local, COLUMN_THREADS),
                            COLUMN_THREADS, column);
        if (worker.communicator != nullptr)
            worker.ghosts->forward(*worker.communicator, reinterpret_cast<T*>(slopes),
                                   ROW_BYTES / int(sizeof(T)), graph, *worker.stream);
        CoordinationArguments<T> given = arguments(worker);
        given.slopes =
            worker.points->gather_slopes(slopes, ROW_BYTES / int(sizeof(double)), *worker.stream);
        run(backward_, worker, given);
    }

private:
    CoordinationArguments<T> arguments(const CudaWorker<T>& worker) const {
        CoordinationArguments<T> out{};
        out.points = worker.points->set();
        out.radii = radii_.data();
        out.types = worker.types;
        out.out = worker.value(spec_.out);
        out.forces = worker.points->forces();
        out.virials = worker.points->virials();
        out.steepness = spec_.steepness;
        out.cutoff = spec_.cutoff;
        out.width = spec_.out.rows.width;
        return out;
    }
    static void run(const CudaFunction& kernel, const CudaWorker<T>& worker,
                    const CoordinationArguments<T>& arguments) {
        kernel.launch(*worker.stream, worker.edges->num_local, POINT_THREADS, arguments);
    }

    const CoordinationSpec& spec_;
    DeviceArray<double> radii_;
    CudaFunction forward_, backward_, take_column_;
};

const RegisterOp<CoordinationSpec, CudaCoordination> registered{"coordination"};

}  // namespace

}  // namespace mdcg
