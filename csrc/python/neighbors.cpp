// Python binding of the neighbour list.
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
        case mdcg::ListChange::none:
            return "none";
        case mdcg::ListChange::shifts:
            return "shifts";
        default:
            return "edges";
    }
}

}  // namespace

void register_neighbors(py::module_& m) {
    py::register_exception<mdcg::GeometryError>(m, "GeometryError", PyExc_ValueError);
    using Held = SharedList::Held;
    py::class_<SharedList> shared(m, "NeighborList",
                                  "Directed edges up to cutoff + skin, sorted by receiver, sender "
                                  "and cell; arrays are copies.");
    shared.def(py::init<double, double>(), py::arg("cutoff"), py::arg("skin"))
        .def("update", &update, py::arg("positions"), py::arg("cell"), py::arg("periodic"),
             py::arg("threads") = 0,
             "Return what has changed: \"none\", \"shifts\" (with the cell) or \"edges\".")
        .def("reset", [](SharedList& self) { Held(self)->reset(); })
        .def("release", [](SharedList& self) { Held(self)->release(); })
        .def("cell_shifts", [](SharedList& self) {
            const Held list(self);
            return copy(list->cell_shifts(), {list->num_edges(), 3});
        });
    const auto property = [&](const char* name, auto get) {
        shared.def_property_readonly(name, [get](SharedList& self) { return get(*Held(self)); });
    };
    using List = const mdcg::NeighborList&;
    property("row_ptr", [](List list) { return copy(list.row_ptr(), {list.num_atoms() + 1}); });
    property("sender", [](List list) { return copy(list.sender(), {list.num_edges()}); });
    property("receiver", [](List list) { return copy(list.receiver(), {list.num_edges()}); });
    property("shifts", [](List list) { return copy(list.shifts(), {list.num_edges(), 3}); });
    property("num_edges", [](List list) { return list.num_edges(); });
    property("cutoff", [](List list) { return list.cutoff(); });
    property("skin", [](List list) { return list.skin(); });
    property("num_builds", [](List list) { return list.num_builds(); });
    property("num_updates", [](List list) { return list.num_updates(); });
}
