#include "engine/domains.hpp"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace py = pybind11;

// Divides a periodic system (without a cell: an open one) of atoms of one type, each of which needs
// `bytes`; returns the number of domains and the nodes of the largest. 0: the system stays whole.
void register_domains(py::module_& m) {
    using Matrix = py::array_t<double, py::array::c_style | py::array::forcecast>;
    m.def(
        "divided",
        [](const Matrix& positions, const std::optional<Matrix>& cell, double cutoff, int layers,
           double bytes, double limit) {
            const auto needed = [bytes](double local, double, double) { return bytes * local; };
            mdcg::Domains domains(cutoff, layers, needed, limit);
            const std::vector<std::int32_t> types(static_cast<std::size_t>(positions.shape(0)), 0);
            const bool periodic[3] = {true, true, true};
            mdcg::CellSystem system;
            system.num_nodes = positions.shape(0);
            system.positions = positions.data();
            system.types = types.data();
            system.cell = cell ? cell->data() : nullptr;
            system.periodic = periodic;
            domains.divide(system, 1);
            return std::make_pair(domains.count(), domains.max_nodes());
        },
        py::arg("positions"), py::arg("cell"), py::arg("cutoff"), py::arg("layers"),
        py::arg("bytes"), py::arg("limit"));
}
