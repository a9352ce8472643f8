#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/cuda/edges/edge_functions.hpp"
#include "engine/cuda/edges/spline_table.hpp"
#include "engine/package/package.hpp"
#include "python_code.hpp"

namespace py = pybind11;

namespace {

using Matrix = py::array_t<double, py::array::c_style | py::array::forcecast>;
using Indices = py::array_t<std::int32_t, py::array::c_style | py::array::forcecast>;

// Rows [n][columns] on a device, padded with zeros to `stride` items.
template <typename T>
class DeviceRows {
public:
    DeviceRows(const mdcg::DeviceStream& stream, std::int64_t rows, std::int64_t columns,
               std::int64_t stride)
        : stream_(stream),
          rows_(rows),
          columns_(columns),
          stride_(stride),
          host_(static_cast<std::size_t>(rows * stride)),
          memory_(stream.device()) {
        memory_.reserve(std::max<std::size_t>(1, host_.size()) * sizeof(T));
        upload();
    }
    void set(const Matrix& source) {
        if (source.ndim() != 2 || source.shape(0) != rows_ || source.shape(1) != columns_)
            throw std::invalid_argument("expected " + std::to_string(rows_) + " rows of " +
                                        std::to_string(columns_) + " numbers");
        for (std::int64_t i = 0; i < rows_; ++i)
            for (std::int64_t k = 0; k < columns_; ++k)
                host_[static_cast<std::size_t>(i * stride_ + k)] = static_cast<T>(source.at(i, k));
        upload();
    }
    T* data() const { return memory_.template as<T>(); }
    Matrix get() {
        if (!host_.empty()) memory_.download(host_.data(), host_.size() * sizeof(T), stream_);
        stream_.synchronize();
        Matrix out({rows_, columns_});
        for (std::int64_t i = 0; i < rows_; ++i)
            for (std::int64_t k = 0; k < columns_; ++k)
                out.mutable_at(i, k) =
                    static_cast<double>(host_[static_cast<std::size_t>(i * stride_ + k)]);
        return out;
    }

private:
    void upload() {
        if (!host_.empty()) memory_.upload(host_.data(), host_.size() * sizeof(T), stream_);
        stream_.synchronize();
    }
    const mdcg::DeviceStream& stream_;
    std::int64_t rows_, columns_, stride_;
    std::vector<T> host_;
    mdcg::DeviceMemory memory_;
};

mdcg::RadialSpec radial_spec(const mdcg::Package& package, std::size_t layer) {
    const nlohmann::json& entry = package.manifest().at("layers").at(layer);
    const mdcg::Tensor* last =
        package.find(entry.at("radial").at("layers").back().at("weight").get<std::string>());
    return mdcg::RadialSpec::read(mdcg::Fields(entry, package, "layer").object("radial"),
                                  mdcg::read_model_info(package),
                                  static_cast<int>(last->shape.at(1)));
}

struct Input {
    const Matrix &positions, &shifts, &d_harmonics, &d_hidden, &ends;
    const Indices &types, &sender, &receiver;
    std::int64_t num_local;
    int l_max, device;
    std::string normalization;
};

// All of a layer's functions of edges, forward and backward.
template <typename T>
py::dict evaluate(const std::string& path, std::size_t layer, const Input& in) {
    const auto package = mdcg::Package::open(path);
    const mdcg::ModelInfo info = mdcg::read_model_info(*package);
    const mdcg::RadialSpec spec = radial_spec(*package, layer);

    mdcg::System system;
    system.num_local = in.num_local;
    system.num_nodes = in.positions.shape(0);
    system.positions = in.positions.data();
    system.types = in.types.data();
    system.num_edges = in.sender.shape(0);
    system.sender = in.sender.data();
    system.receiver = in.receiver.data();
    system.shifts = in.shifts.data();
    mdcg::Graph host;
    host.update_order(system, info.r_max, info.num_types(), false);
    const mdcg::DeviceStream stream(in.device);
    mdcg::CudaKernels kernels(compiled_by_python(in.device), sizeof(T));
    mdcg::DeviceEdges graph(kernels);
    const mdcg::CudaGeometry<T> geometry(kernels, info.r_max, info.flip_edges);
    mdcg::CudaEdgeFunctions<T> functions(spec, in.l_max, in.normalization, info.flip_edges);
    functions.prepare(kernels, stream);
    kernels.load();
    graph.upload(host, info.num_types(), stream);
    graph.upload_shifts(host, system, true, stream);
    mdcg::copy_to_device(graph.positions, system.positions,
                         static_cast<std::size_t>(24 * system.num_nodes), stream);
    functions.take_list(graph, stream);

    const std::int64_t edges = graph.num_edges, nodes = graph.num_nodes;
    const std::int64_t width = functions.harmonics_width(), stride = functions.hidden_stride();
    const std::int64_t first = spec.layers[0].out;
    const std::int64_t first_stride =
        mdcg::Rows::parse(std::to_string(first) + "x0e", mdcg::row_align<T>()).width;
    DeviceRows<T> harmonics(stream, edges, width, width),
        hidden(stream, edges, spec.units(), stride);
    DeviceRows<T> d_harmonics(stream, edges, width, width),
        d_hidden(stream, edges, spec.units(), stride);
    DeviceRows<T> ends(stream, nodes, first, first_stride), gradient(stream, edges, 3, 3);
    DeviceRows<T> d_sender(stream, nodes, first, first_stride),
        d_receiver(stream, nodes, first, first_stride);
    DeviceRows<double> forces(stream, nodes, 3, 3), virials(stream, nodes, 9, 9);
    DeviceRows<double> failures(stream, 1, 1, 1);
    d_harmonics.set(in.d_harmonics);
    d_hidden.set(in.d_hidden);
    typename mdcg::CudaEdgeFunctions<T>::Ends rows;
    if (in.ends.shape(0) > 0) {
        ends.set(in.ends);
        if (!spec.sender_value.empty()) {
            rows.sender = ends.data();
            rows.d_sender = d_sender.data();
        }
        if (!spec.receiver_value.empty()) {
            rows.receiver = ends.data();
            rows.d_receiver = d_receiver.data();
        }
        rows.sender_width = rows.receiver_width = first_stride;
    }
    mdcg::DeviceMemory scratch(in.device);
    mdcg::CudaWorker<T> worker;
    worker.stream = &stream;
    worker.edges = &graph;
    worker.scratch_memory = &scratch;
    worker.edge_gradient = gradient.data();
    geometry.run(stream, graph, reinterpret_cast<int*>(failures.data()));
    for (const mdcg::CudaChunk& chunk : graph.chunks) {
        char* const work = worker.device_scratch(functions.work_bytes(chunk.num_edges));
        T* const own_hidden = hidden.data() + chunk.first_edge * stride;
        functions.forward(worker, chunk, rows, work, harmonics.data() + chunk.first_edge * width,
                          own_hidden);
        functions.backward(worker, chunk, rows, work, d_harmonics.data() + chunk.first_edge * width,
                           d_hidden.data() + chunk.first_edge * stride);
    }
    geometry.assemble(stream, graph, gradient.data(), forces.data(), virials.data());
    py::dict out;
    out["harmonics"] = harmonics.get();
    out["hidden"] = hidden.get();
    out["gradient"] = gradient.get();
    out["d_sender"] = d_sender.get();
    out["d_receiver"] = d_receiver.get();
    out["forces"] = forces.get();
    out["virials"] = virials.get();
    out["edges"] = host.all_edge();
    const auto integers = [&](const std::int32_t* from, std::int64_t count) {
        std::vector<std::int32_t> to(static_cast<std::size_t>(count));
        mdcg::copy_to_host(to.data(), from, 4 * to.size(), stream);
        stream.synchronize();
        return to;
    };
    out["row_ptr"] = integers(graph.row_ptr, graph.num_local + 1);
    out["live"] = integers(graph.live, edges);
    out["num_live"] = integers(graph.num_live, graph.num_local);
    out["num_chunks"] = graph.chunks.size();
    return out;
}

// A table of weights after lists of edges (sender, receiver), one after the other; weight k stands
// at column 2 k + 1.
template <typename T>
py::dict power_table(const std::string& path, std::size_t layer, const Indices& types,
                     const std::vector<std::pair<Indices, Indices>>& lists, int device) {
    const auto package = mdcg::Package::open(path);
    const mdcg::ModelInfo info = mdcg::read_model_info(*package);
    const mdcg::RadialSpec spec = radial_spec(*package, layer);
    mdcg::WeightColumns columns;
    const int outputs = spec.layers.back().out, panel = mdcg::row_align<T>();
    for (int k = 0; k < outputs; ++k) columns.columns.push_back(2 * k + 1);
    columns.width = (2 * outputs + panel - 1) / panel * panel;
    const mdcg::DeviceStream stream(device);
    mdcg::SplineTable<T> table(spec, columns);
    std::vector<bool> built;
    mdcg::CudaKernels kernels(compiled_by_python(device), sizeof(T));
    for (const auto& [sender, receiver] : lists) {
        mdcg::System system;
        system.num_local = system.num_nodes = types.shape(0);
        const std::vector<double> positions(static_cast<std::size_t>(3 * system.num_nodes));
        system.positions = positions.data();
        system.types = types.data();
        system.num_edges = sender.shape(0);
        system.sender = sender.data();
        system.receiver = receiver.data();
        mdcg::Graph host;
        host.update_order(system, info.r_max, info.num_types(), false);
        mdcg::DeviceEdges graph(kernels);
        kernels.load();
        graph.upload(host, info.num_types(), stream);
        built.push_back(table.take_list(graph, stream));
    }
    const std::int64_t count = table.rows() * table.columns() * 4;
    std::vector<T> data(static_cast<std::size_t>(count));
    const int n = info.num_types();
    std::vector<mdcg::TableEntry> places(static_cast<std::size_t>(n * n));
    mdcg::copy_to_host(data.data(), table.data(), data.size() * sizeof(T), stream);
    mdcg::copy_to_host(places.data(), table.places(), places.size() * sizeof(places[0]), stream);
    stream.synchronize();
    Matrix coefficients({table.rows(), table.columns(), std::int64_t(4)});
    std::copy(data.begin(), data.end(), coefficients.mutable_data());
    Matrix found({std::int64_t(n * n), std::int64_t(3)});
    for (std::size_t i = 0; i < places.size(); ++i) {
        const auto pair = static_cast<std::int64_t>(i);
        found.mutable_at(pair, 0) = places[i].first;
        found.mutable_at(pair, 1) = places[i].inverse_step;
        found.mutable_at(pair, 2) = static_cast<double>(places[i].row);
    }
    py::dict out;
    out["coefficients"] = coefficients;
    out["places"] = found.reshape({std::int64_t(n), std::int64_t(n), std::int64_t(3)});
    out["knots"] = table.knots();
    out["bytes"] = table.bytes();
    out["built"] = built;
    return out;
}

}  // namespace

void register_cuda_edges(py::module_& m) {
    m.def(
        "cuda_edge_functions",
        [](const std::string& path, std::size_t layer, int l_max, const std::string& normalization,
           const Matrix& positions, const Indices& types, std::int64_t num_local,
           const Indices& sender, const Indices& receiver, const Matrix& shifts,
           const Matrix& d_harmonics, const Matrix& d_hidden, const Matrix& ends,
           bool double_precision, int device) {
            const Input in{positions, shifts,   d_harmonics, d_hidden, ends,   types,
                           sender,    receiver, num_local,   l_max,    device, normalization};
            return (double_precision ? &evaluate<double> : &evaluate<float>)(path, layer, in);
        },
        py::arg("path"), py::arg("layer"), py::arg("l_max"), py::arg("normalization"),
        py::arg("positions"), py::arg("types"), py::arg("num_local"), py::arg("sender"),
        py::arg("receiver"), py::arg("shifts"), py::arg("d_harmonics"), py::arg("d_hidden"),
        py::arg("ends"), py::arg("double_precision"), py::arg("device") = 0);
    m.def(
        "cuda_power_table",
        [](const std::string& path, std::size_t layer, const Indices& types,
           const std::vector<std::pair<Indices, Indices>>& lists, bool double_precision,
           int device) {
            return (double_precision ? &power_table<double>
                                     : &power_table<float>)(path, layer, types, lists, device);
        },
        py::arg("path"), py::arg("layer"), py::arg("types"), py::arg("lists"),
        py::arg("double_precision"), py::arg("device") = 0);
}
