// Python bindings of the neighbour list and of the host compiler.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "register_engine.hpp"
#include "shared_list.hpp"

namespace py = pybind11;

namespace {

using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;

// Copies: the list reuses its memory.
template <typename T>
py::array_t<T> copy(const std::vector<T>& values, std::vector<py::ssize_t> shape) {
    return py::array_t<T>(std::move(shape), values.data());
}

std::string update(SharedList& self, const Doubles& positions, const std::optional<Doubles>& cell,
                   const std::array<bool, 3>& periodic, int threads) {
    if (positions.ndim() != 2 || positions.shape(1) != 3)
        throw py::value_error("positions must have shape (n_atoms, 3)");
    if (cell && (cell->ndim() != 2 || cell->shape(0) != 3 || cell->shape(1) != 3))
        throw py::value_error("cell must have shape (3, 3)");
    const double* where = positions.data();
    const double* box = cell ? cell->data() : nullptr;
    const std::int64_t count = positions.shape(0);
    const SharedList::Held list(self);
    const py::gil_scoped_release release;
    switch (list->update(count, where, box, periodic.data(), threads)) {
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
    using Held = SharedList::Held;
    py::class_<SharedList>(m, "NeighborList")
        .def(py::init<double, double>(), py::arg("cutoff"), py::arg("skin"))
        .def("update", &update, py::arg("positions"), py::arg("cell"), py::arg("periodic"),
             py::arg("threads") = 0)
        .def("reset", [](SharedList& self) { Held(self)->reset(); })
        .def("release", [](SharedList& self) { Held(self)->release(); })
        .def_property_readonly("row_ptr",
                               [](SharedList& self) {
                                   const Held list(self);
                                   return copy(list->row_ptr(), {list->num_atoms() + 1});
                               })
        .def_property_readonly("sender",
                               [](SharedList& self) {
                                   const Held list(self);
                                   return copy(list->sender(), {list->num_edges()});
                               })
        .def_property_readonly("receiver",
                               [](SharedList& self) {
                                   const Held list(self);
                                   return copy(list->receiver(), {list->num_edges()});
                               })
        .def_property_readonly("shifts",
                               [](SharedList& self) {
                                   const Held list(self);
                                   return copy(list->shifts(), {list->num_edges(), 3});
                               })
        .def_property_readonly("num_edges",
                               [](SharedList& self) { return Held(self)->num_edges(); })
        .def("cell_shifts",
             [](SharedList& self) {
                 const Held list(self);
                 return copy(list->cell_shifts(), {list->num_edges(), 3});
             })
        .def_property_readonly("cutoff", [](SharedList& self) { return Held(self)->cutoff(); })
        .def_property_readonly("skin", [](SharedList& self) { return Held(self)->skin(); })
        .def_property_readonly("num_builds",
                               [](SharedList& self) { return Held(self)->num_builds(); })
        .def_property_readonly("num_updates",
                               [](SharedList& self) { return Held(self)->num_updates(); });
}
