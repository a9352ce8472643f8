#include <algorithm>
#include <string>

#include "core/integers.hpp"
#include "engine/cuda/cuda_op.hpp"
#include "engine/cuda/device_points.hpp"
#include "engine/ops/pair/dispersion.hpp"

namespace mdcg {

namespace {

constexpr const char* TEXT = "dispersion.cuh";
constexpr std::size_t ROW_BYTES = 64;  // of the weights, padded

template <typename T>
class CudaDispersion : public CudaOp<T> {
public:
    explicit CudaDispersion(const DispersionSpec& spec) : spec_(spec) {
        if (spec.x.accumulate)  // its gradient is copied
            spec.fields.fail("x", "a value whose gradient another layer finds first",
                             "a value that this layer alone reads, for device cuda");
        for (std::size_t i = 0; i < spec.c6.size(); ++i)
            if (spec.c6[i] != 0) references_ = std::max(references_, int(i % MAX_REFERENCES) + 1);
    }

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        const bool zero = std::any_of(spec_.damping.begin(), spec_.damping.end(),
                                      [](const auto& d) { return d.p6 != 0 || d.p8 != 0; });
        const std::string defines = "#define REFERENCES_USED " + std::to_string(references_) +
                                    "\n#define ZERO_DAMPING " + (zero ? "true" : "false") + "\n";
        energy_ = kernels.fixed(TEXT, "dispersion_energy", defines);
        gradient_ = kernels.fixed(TEXT, "dispersion_gradient", defines);
        c6_.upload(spec_.c6, stream);
        damping_.upload(spec_.damping, stream);
    }
    // One pass gives energies, forces and gradients: the forward pass, after which energies are
    // summed.
    void forward(CudaWorker<T>& worker, Range) const override {
        DispersionArguments<T> arguments{};
        arguments.points = worker.points->set();
        arguments.rows = worker.value(spec_.x);
        arguments.weights =
            worker.points->gather(arguments.rows, references_, spec_.x.rows.width, *worker.stream);
        arguments.c6 = c6_.data();
        arguments.damping = damping_.data();
        arguments.types = worker.types;
        arguments.energies = worker.energies;
        arguments.gradient = static_cast<T*>(worker.points->kept_rows());
        arguments.forces = worker.points->forces();
        arguments.virials = worker.points->virials();
        arguments.cutoff = spec_.cutoff;
        arguments.count = worker.points->count();
        arguments.num_types = spec_.num_types;
        arguments.width = spec_.x.rows.width;
        if (worker.energy_weights != nullptr) refuse_energy_weights();
        (worker.with_gradient ? gradient_ : energy_)
            .launch(*worker.stream, worker.edges->num_local, POINT_THREADS, arguments);
    }
    void backward(CudaWorker<T>& worker, Range) const override {
        if (spec_.x.needs_gradient)
            copy_on_device(worker.gradient(spec_.x), worker.points->kept_rows(),
                           size(worker.edges->num_local) * ROW_BYTES, *worker.stream);
    }

private:
    const DispersionSpec& spec_;
    int references_ = 1;  // that any type has
    DeviceArray<double> c6_;
    DeviceArray<PairDamping> damping_;
    CudaFunction energy_, gradient_;
};

const RegisterOp<DispersionSpec, CudaDispersion> registered{"dispersion"};

}  // namespace

}  // namespace mdcg
