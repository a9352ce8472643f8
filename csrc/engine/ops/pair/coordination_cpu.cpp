#include "engine/communicator.hpp"
#include "engine/ops/pair/coordination.hpp"
#include "engine/ops/pair/points_cpu.hpp"

namespace mdcg {

namespace {

template <typename T>
class CpuCoordination : public CpuOp<T> {
public:
    explicit CpuCoordination(const CoordinationSpec& spec) : spec_(spec) {}

    void forward(Worker<T>& worker, Range nodes) const override {
        each_atom(worker, nodes, spec_.cutoff, [&](std::int64_t n, const auto& visit) {
            double total = 0;
            visit([&](int type, std::int64_t, const PairRun& run) {
                total += simd<double>().coordination(run, radius(worker, n, type), spec_.steepness);
            });
            *worker.value(spec_.out, n) = static_cast<T>(total);
        });
    }

    // Each end of a pair takes the whole force from the derivatives of both.
    void backward(Worker<T>& worker, Range nodes) const override {
        std::vector<double>& slopes = slopes_;
        slopes.assign(size(worker.graph->num_nodes), 0.0);
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            slopes[size(n)] = static_cast<double>(*worker.gradient(spec_.out, n));
        if (worker.communicator != nullptr)
            worker.communicator->forward(slopes.data(), 1, sizeof(double));
        gather_points(worker, 1, 1, slopes.data(), of_points_);
        each_atom(worker, nodes, spec_.cutoff, [&](std::int64_t n, const auto& visit) {
            PairForce force;
            visit([&](int type, std::int64_t begin, const PairRun& run) {
                simd<double>().coordination_force(run, radius(worker, n, type), spec_.steepness,
                                                  slopes[size(n)], of_points_[0].data() + begin,
                                                  force);
            });
            add_force(worker, n, force);
        });
    }

private:
    double radius(const Worker<T>& worker, std::int64_t n, int type) const {
        return spec_.radii[size(worker.types[n])] + spec_.radii[size(type)];
    }

    const CoordinationSpec& spec_;
    // of one evaluation, on the thread that has called
    mutable std::vector<double> slopes_;
    mutable std::vector<std::vector<double>> of_points_;
};

const RegisterOp<CoordinationSpec, CpuCoordination> registered{"coordination"};

}  // namespace

}  // namespace mdcg
