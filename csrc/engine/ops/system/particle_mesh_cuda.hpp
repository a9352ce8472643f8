// Long-range sums by a particle mesh on devices.
#pragma once

#include "engine/cuda/kernels.hpp"
#include "engine/edges/layout.hpp"
#include "engine/ops/system/particle_mesh.hpp"
#include "kernels/particle_mesh.hpp"

namespace mdcg {

template <typename T>
class CudaParticleMesh {
public:
    CudaParticleMesh() : mesh_(WINDOW_POINTS<T>, 0) {}

    void prepare(CudaKernels& kernels);
    // Takes the waves of the next sums.
    void update(const Waves& waves) { uploaded_ = !mesh_.update(waves) && uploaded_; }
    // Uploads tables of sizes that have changed.
    void upload(const DeviceStream& stream);
    // Bytes of the tables on the device, and those that they need.
    std::size_t bytes() const;
    std::size_t needed_bytes() const;
    // Takes device memory for the mesh.
    void lay_out(Layout& parts);

    // Finds the sums of charges, also that of their absolute values.
    void find_sums(const EwaldArguments<T>& sum, const DeviceStream& stream);
    // Finds fields from factors, as wave_fields does with one part.
    void find_fields(const EwaldArguments<T>& sum, const DeviceStream& stream);

private:
    void transform(const DeviceStream& stream, const Long* charges, T* from, const T* table,
                   std::int64_t rows, int depth, int columns, T* to) const;

    ParticleMesh mesh_;
    bool uploaded_ = false;
    CudaFunction spread_, transform_charges_, transform_, sums_, factors_, gather_;
    DeviceArray<T> of_charges_[3], of_factors_[3];
    MeshArguments<T> arguments_{};
};

}  // namespace mdcg
