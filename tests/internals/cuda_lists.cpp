#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/cuda/cell_list.hpp"
#include "engine/cuda/sort.hpp"
#include "engine/cuda/step_results.hpp"
#include "python_code.hpp"

namespace py = pybind11;

namespace {

using Matrix = py::array_t<double, py::array::c_style | py::array::forcecast>;
using Indices = py::array_t<std::int32_t, py::array::c_style | py::array::forcecast>;

class Lists {
public:
    Lists(double cutoff, double skin, int num_types, std::int64_t range_edges, int device,
          bool pairs)
        : num_types_(num_types),
          stream_(device),
          kernels_(compiled_by_python(device), sizeof(float)),
          graph_(kernels_),
          cells_(kernels_),
          results_(kernels_),
          given_(device),
          watch_(cutoff, skin) {
        graph_.range_edges = range_edges;
        if (pairs) graph_.edge_order = mdcg::EdgeOrder::paired;
        kernels_.load();
    }

    // None where the host's list has to serve. `arrays` false: times alone.
    py::object make(const Matrix& positions, const Indices& types, const py::object& cell,
                    const std::array<bool, 3>& periodic, bool arrays) {
        Matrix box;
        if (!cell.is_none()) box = cell.cast<Matrix>();
        const std::int64_t nodes = positions.shape(0);
        watch_.needs_rebuild(nodes, positions.data(), cell.is_none() ? nullptr : box.data(),
                             periodic.data());
        given_.grow(8 * static_cast<std::size_t>(positions.size()));
        std::copy_n(positions.data(), positions.size(), given_.as<double>());
        const auto start = std::chrono::steady_clock::now();
        const mdcg::ListPoints points{nodes, given_.as<double>(), types.data(), nodes, nodes};
        const auto grid = mdcg::CudaCellList::grid(watch_, points);
        if (!grid) return py::none();
        cells_.make(*grid, watch_, points, num_types_, stream_, graph_, node_);
        py::dict out = read(start, arrays);
        out["node"] = node_;
        if (arrays) {
            out["image"] = integers(graph_.shifts.image, graph_.num_edges);
            place();
            std::vector<double> at(static_cast<std::size_t>(3 * nodes));
            mdcg::copy_to_host(at.data(), graph_.positions, 8 * at.size(), stream_);
            stream_.synchronize();
            out["positions"] = at;
        }
        return out;
    }

    py::dict take(std::int64_t num_local, const Indices& types, const Indices& sender,
                  const Indices& receiver, bool reversed) {
        const std::vector<double> zeros(static_cast<std::size_t>(3 * types.size()));
        mdcg::System system;
        system.num_local = num_local;
        system.num_nodes = types.size();
        system.positions = zeros.data();
        system.types = types.data();
        system.num_edges = sender.size();
        system.sender = sender.data();
        system.receiver = receiver.data();
        mdcg::Graph host;
        host.update_order(system, watch_.cutoff(), num_types_, false);
        const auto start = std::chrono::steady_clock::now();
        graph_.upload(host, num_types_, reversed, stream_);
        return read(start, true);
    }

private:
    // Copies positions to the device as a step does.
    void place() {
        results_.reserve(graph_.num_local, graph_.num_nodes, stream_);
        results_.begin(given_.as<double>(), cells_.placed_nodes(), graph_, stream_);
        stream_.synchronize();
    }

    std::vector<std::int32_t> integers(const std::int32_t* from, std::int64_t count) const {
        std::vector<std::int32_t> to(static_cast<std::size_t>(count));
        mdcg::copy_to_host(to.data(), from, 4 * to.size(), stream_);
        stream_.synchronize();
        return to;
    }

    py::dict read(std::chrono::steady_clock::time_point start, bool arrays) const {
        stream_.synchronize();
        const std::chrono::duration<double, std::milli> time =
            std::chrono::steady_clock::now() - start;
        py::dict out;
        const mdcg::DeviceEdges& g = graph_;
        out["milliseconds"] = time.count();
        out["num_edges"] = g.num_edges;
        out["bytes"] = g.bytes() + cells_.bytes();
        out["address"] = reinterpret_cast<std::uintptr_t>(g.sender);
        if (!arrays) return out;
        std::vector<std::tuple<int, int, int, int>> divided;
        for (const mdcg::ReceiverRange& r : g.divided(g.range_edges))
            divided.emplace_back(r.first_receiver, r.num_receivers, r.first_edge, r.num_edges);
        out["divided"] = divided;
        py::list ranges;
        for (const mdcg::ReceiverRange& s : g.ranges) {
            py::dict range;
            range["receivers"] = std::make_tuple(s.first_receiver, s.num_receivers);
            range["edges"] = std::make_tuple(s.first_edge, s.num_edges);
            range["senders"] = std::make_tuple(s.first_sender, s.num_senders);
            range["rows"] = std::make_tuple(s.first_row, s.num_rows);
            ranges.append(range);
        }
        out["ranges"] = ranges;
        out["pairs"] = std::make_tuple(g.pairs.receiver, g.pairs.sender);
        out["local_type_first"] = g.local_type_first;
        out["ghost_type_first"] = g.ghost_type_first;
        out["row_ptr"] = integers(g.row_ptr, g.num_local + 1);
        out["sender_ptr"] = integers(g.sender_ptr, g.num_nodes + 1);
        out["types"] = integers(g.types, g.num_nodes);
        out["by_type"] = integers(g.by_type, g.num_nodes);
        const auto edges = [&](const char* name, const std::int32_t* from) {
            out[name] = integers(from, g.num_edges);
        };
        edges("sender", g.sender);
        edges("receiver", g.receiver);
        edges("sender_type", g.sender_type);
        edges("receiver_type", g.receiver_type);
        edges("by_sender", g.by_sender);
        out["group"] = g.group;
        if (g.group == 0) return out;
        out["range_edges"] = g.range_edges;
        edges("by_group", g.by_group);
        edges("pair_row", g.pair_row);
        std::int64_t senders = 0;
        for (const mdcg::ReceiverRange& r : g.ranges) senders += r.num_senders;
        std::vector<std::int32_t> nodes(static_cast<std::size_t>(senders));
        std::iota(nodes.begin(), nodes.end(), 0);
        out["range_sender"] =
            g.range_sender != nullptr ? integers(g.range_sender, senders) : std::move(nodes);
        const auto range_count = static_cast<std::int64_t>(g.ranges.size());
        out["range_row_ptr"] = integers(g.range_row_ptr, senders + range_count);
        return out;
    }

    int num_types_;
    mdcg::DeviceStream stream_;
    mdcg::CudaKernels kernels_;
    mdcg::DeviceEdges graph_;
    mdcg::CudaCellList cells_;
    mdcg::StepResults results_;
    mdcg::PinnedMemory given_;  // positions
    mdcg::VerletSkin watch_;
    std::vector<std::int32_t> node_;
};

}  // namespace

void register_cuda_lists(py::module_& m) {
    m.def(
        "set_most_range_edges",
        [](std::int64_t edges) {
            return std::exchange(mdcg::DeviceEdges::most_range_edges, edges);
        },
        py::arg("edges"), "Of models that are first evaluated from now on; returns it as it was.");
    m.def(
        "set_most_small_edges",
        [](std::int64_t edges) {
            return std::exchange(mdcg::DeviceEdges::most_small_edges, edges);
        },
        py::arg("edges"), "Of lists that are made from now on; returns it as it was.");
    m.def(
        "set_fewest_filling",
        [](std::int64_t receivers) {
            return std::exchange(mdcg::DeviceEdges::fewest_filling, receivers);
        },
        py::arg("receivers"), "Of lists that are used from now on; returns it as it was.");
    m.def(
        "set_most_alone",
        [](std::int64_t items) { return std::exchange(mdcg::CudaSort::most_alone, items); },
        py::arg("items"), "Of sums and sorts that are made from now on; returns it as it was.");
    py::class_<Lists>(m, "CudaLists")
        .def(py::init<double, double, int, std::int64_t, int, bool>(), py::arg("cutoff"),
             py::arg("skin"), py::arg("num_types") = 1, py::arg("range_edges") = 8192,
             py::arg("device") = 0, py::arg("pairs") = false)
        .def("make", &Lists::make, py::arg("positions"), py::arg("types"),
             py::arg("cell") = py::none(), py::arg("periodic") = std::array<bool, 3>{},
             py::arg("arrays") = true)
        .def("take", &Lists::take, py::arg("num_local"), py::arg("types"), py::arg("sender"),
             py::arg("receiver"), py::arg("reversed") = false);
}
