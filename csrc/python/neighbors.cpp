// Python bindings of the neighbour list and of the host compiler.
#include "engine/neighbors.hpp"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/host_compiler.hpp"
#include "register_engine.hpp"

namespace py = pybind11;

namespace {

using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;

// Copies: the list reuses its memory.
template <typename T>
py::array_t<T> copy(const std::vector<T>& values, std::vector<py::ssize_t> shape) {
    return py::array_t<T>(std::move(shape), values.data());
}

std::string update(mdcg::NeighborList& self, const Doubles& positions,
                   const std::optional<Doubles>& cell, const std::array<bool, 3>& periodic,
                   int threads) {
    if (positions.ndim() != 2 || positions.shape(1) != 3)
        throw py::value_error("positions must have shape (n_atoms, 3)");
    if (cell && (cell->ndim() != 2 || cell->shape(0) != 3 || cell->shape(1) != 3))
        throw py::value_error("cell must have shape (3, 3)");
    const double* where = positions.data();
    const double* box = cell ? cell->data() : nullptr;
    const std::int64_t count = positions.shape(0);
    py::gil_scoped_release release;
    switch (self.update(count, where, box, periodic.data(), threads)) {
        case mdcg::NeighborList::Change::none:
            return "none";
        case mdcg::NeighborList::Change::shifts:
            return "shifts";
        default:
            return "edges";
    }
}

}  // namespace

void register_neighbors(py::module_& m) {
    py::register_exception<mdcg::GeometryError>(m, "GeometryError", PyExc_ValueError);
    py::class_<mdcg::NeighborList>(m, "NeighborList")
        .def(py::init<double, double>(), py::arg("cutoff"), py::arg("skin"))
        .def("update", &update, py::arg("positions"), py::arg("cell"), py::arg("periodic"),
             py::arg("threads") = 0)
        .def("reset", &mdcg::NeighborList::reset)
        .def_property_readonly("row_ptr",
                               [](const mdcg::NeighborList& self) {
                                   return copy(self.row_ptr(), {self.num_atoms() + 1});
                               })
        .def_property_readonly(
            "sender",
            [](const mdcg::NeighborList& self) { return copy(self.sender(), {self.num_edges()}); })
        .def_property_readonly("receiver",
                               [](const mdcg::NeighborList& self) {
                                   return copy(self.receiver(), {self.num_edges()});
                               })
        .def_property_readonly("shifts",
                               [](const mdcg::NeighborList& self) {
                                   return copy(self.shifts(), {self.num_edges(), 3});
                               })
        .def_property_readonly("num_edges", &mdcg::NeighborList::num_edges)
        .def("cell_shifts",
             [](const mdcg::NeighborList& self) {
                 return copy(self.cell_shifts(), {self.num_edges(), 3});
             })
        .def_property_readonly("cutoff", &mdcg::NeighborList::cutoff)
        .def_property_readonly("skin", &mdcg::NeighborList::skin)
        .def_property_readonly("num_builds", &mdcg::NeighborList::num_builds)
        .def_property_readonly("num_updates", &mdcg::NeighborList::num_updates);

    m.def(
        "build_kernels",
        [](const std::vector<std::string>& sources, const std::string& level, int processes) {
            std::vector<mdcg::BuiltKernel> built;
            {
                py::gil_scoped_release release;
                built = mdcg::build_kernels(sources, mdcg::HostTarget::of(level), processes);
            }
            py::list out;
            for (const auto& each : built)
                out.append(py::make_tuple(each.path, each.error, each.compiled, each.seconds));
            return out;
        },
        py::arg("sources"), py::arg("level") = "native", py::arg("processes") = 0);
    m.def("host_target", [](const std::string& level) { return mdcg::HostTarget::of(level).name; });
    m.def("kernel_cache_root", &mdcg::kernel_cache_root);
}
