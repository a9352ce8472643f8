#include "engine/ops/system/particle_mesh_cuda.hpp"

#include "core/integers.hpp"

namespace mdcg {

template <typename T>
void CudaParticleMesh<T>::prepare(CudaKernels& kernels) {
    constexpr const char* TEXT = "particle_mesh.cuh";
    spread_ = kernels.fixed(TEXT, "spread_charges");
    transform_charges_ = kernels.fixed(TEXT, "transform_charges");
    transform_ = kernels.fixed(TEXT, "transform");
    sums_ = kernels.fixed(TEXT, "mesh_sums");
    factors_ = kernels.fixed(TEXT, "mesh_factors");
    gather_ = kernels.fixed(TEXT, "gather_potentials");
}

template <typename T>
void CudaParticleMesh<T>::upload(const DeviceStream& stream) {
    if (uploaded_) return;
    const auto upload = [&](const std::vector<double>& table, DeviceArray<T>& to) {
        to.upload(std::vector<T>(table.begin(), table.end()), stream);
    };
    for (std::size_t d = 0; d < 3; ++d) {
        upload(mesh_.of_charges(d), of_charges_[d]);
        upload(mesh_.of_factors(d), of_factors_[d]);
        arguments_.points[d] = mesh_.points(d);
        arguments_.modes[d] = mesh_.modes(d);
    }
    uploaded_ = true;
}

template <typename T>
std::size_t CudaParticleMesh<T>::bytes() const {
    std::size_t bytes = 0;
    for (std::size_t d = 0; d < 3; ++d) bytes += of_charges_[d].bytes() + of_factors_[d].bytes();
    return bytes;
}

template <typename T>
std::size_t CudaParticleMesh<T>::needed_bytes() const {
    std::size_t items = 0;
    for (std::size_t d = 0; d < 3; ++d)
        items += mesh_.of_charges(d).size() + mesh_.of_factors(d).size();
    return items * sizeof(T);
}

// Transforms read one of two pieces of memory and write the other. The first one holds the charges,
// and at last the potentials, the second one the amplitudes.
template <typename T>
void CudaParticleMesh<T>::lay_out(Layout& parts) {
    parts.take(arguments_.charges, mesh_.num_points());
    parts.take(arguments_.amplitudes, mesh_.most_items());
    arguments_.potentials = reinterpret_cast<T*>(arguments_.charges);
}

template <typename T>
void CudaParticleMesh<T>::transform(const DeviceStream& stream, const Long* charges, T* from,
                                    const T* table, std::int64_t rows, int depth, int columns,
                                    T* to) const {
    const MeshProduct<T> product{charges, from, table, to, rows, depth, columns};
    (charges != nullptr ? transform_charges_ : transform_)
        .launch(stream, ceil_div(rows, PRODUCT_ROWS) * ceil_div(columns, PRODUCT_COLUMNS),
                PRODUCT_THREADS, product);
}

template <typename T>
void CudaParticleMesh<T>::find_sums(const EwaldArguments<T>& sum, const DeviceStream& stream) {
    MeshArguments<T>& a = arguments_;
    a.sum = sum;
    clear_on_device(a.charges, 8 * size(mesh_.num_points()), stream);
    clear_on_device(sum.sums + sum.num_sums, 8, stream);
    spread_.launch(stream, ceil_div(sum.num_atoms, MESH_ATOMS), MESH_THREADS, a);
    const auto points = [&](std::size_t d) { return std::int64_t(a.points[d]); };
    const auto modes = [&](std::size_t d) { return std::int64_t(a.modes[d]); };
    T* const numbers = a.potentials;
    transform(stream, a.charges, nullptr, of_charges_[0].data(), points(1) * points(2), a.points[0],
              a.modes[0], a.amplitudes);
    transform(stream, nullptr, a.amplitudes, of_charges_[1].data(), points(2) * modes(0),
              a.points[1], a.modes[1], numbers);
    transform(stream, nullptr, numbers, of_charges_[2].data(), modes(0) * modes(1), a.points[2],
              a.modes[2], a.amplitudes);
    sums_.launch(stream, ceil_div(sum.num_columns, FACTOR_COLUMNS), 32 * FACTOR_COLUMNS, a);
}

template <typename T>
void CudaParticleMesh<T>::find_fields(const EwaldArguments<T>& sum, const DeviceStream& stream) {
    MeshArguments<T>& a = arguments_;
    a.sum = sum;
    const auto points = [&](std::size_t d) { return std::int64_t(a.points[d]); };
    const auto modes = [&](std::size_t d) { return std::int64_t(a.modes[d]); };
    clear_on_device(a.amplitudes, sizeof(T) * size(modes(0) * modes(1) * modes(2)), stream);
    factors_.launch(stream, ceil_div(sum.num_columns, FACTOR_COLUMNS), 32 * FACTOR_COLUMNS, a);
    T* const numbers = a.potentials;
    transform(stream, nullptr, a.amplitudes, of_factors_[0].data(), modes(1) * modes(2), a.modes[0],
              a.points[0], numbers);
    transform(stream, nullptr, numbers, of_factors_[1].data(), modes(2) * points(0), a.modes[1],
              a.points[1], a.amplitudes);
    transform(stream, nullptr, a.amplitudes, of_factors_[2].data(), points(0) * points(1),
              a.modes[2], a.points[2], a.potentials);
    gather_.launch(stream, ceil_div(sum.num_atoms, MESH_ATOMS), MESH_THREADS, a);
}

template class CudaParticleMesh<float>;
template class CudaParticleMesh<double>;

}  // namespace mdcg
