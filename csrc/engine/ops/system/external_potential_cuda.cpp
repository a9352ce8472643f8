// The potential of a uniform external field, on devices.
#include "engine/cuda/cuda_op.hpp"
#include "engine/ops/system/external_potential.hpp"
#include "kernels/external_potential.hpp"

namespace mdcg {

namespace {

template <typename T>
class CudaExternalPotential : public CudaOp<T> {
public:
    explicit CudaExternalPotential(const ExternalPotentialSpec& spec) : spec_(spec) {}

    void prepare(CudaKernels& kernels, const DeviceStream&) override {
        kernel_ = kernels.fixed("external_potential.cuh", "external_potential");
    }
    void forward(CudaWorker<T>& worker, Range) const override { run(worker, false); }
    void backward(CudaWorker<T>& worker, Range) const override { run(worker, true); }

private:
    void run(CudaWorker<T>& worker, bool backward) const {
        ExternalPotentialArguments<T> a{};
        a.num_atoms = worker.edges->num_local;
        const std::array<double, 3> field = spec_.field(worker, a.num_atoms);
        std::copy(field.begin(), field.end(), a.field);
        a.positions = worker.edges->positions;
        a.rows = backward ? worker.gradient(spec_.out) : worker.value(spec_.out);
        a.width = spec_.out.rows.width;
        a.vector = spec_.out.rows.blocks[1].offset;
        a.stride = spec_.out.rows.blocks[1].stride;
        if (backward) {
            a.forces = worker.forces;
            a.virials = worker.virials;
        }
        kernel_.launch(*worker.stream, 1, EXTERNAL_THREADS, a);
    }

    const ExternalPotentialSpec& spec_;
    CudaFunction kernel_;
};

const RegisterOp<ExternalPotentialSpec, CudaExternalPotential> registered{"external_potential"};

}  // namespace

}  // namespace mdcg
