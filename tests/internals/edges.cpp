#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "engine/backend/cpu/edge_kernels.hpp"
#include "engine/backend/cpu/simd.hpp"
#include "engine/edges/harmonics.hpp"
#include "engine/edges/radial.hpp"
#include "engine/edges/spline_basis.hpp"
#include "engine/neighbors/verlet_skin.hpp"

namespace py = pybind11;

namespace {

using Matrix = py::array_t<double, py::array::c_style | py::array::forcecast>;

template <typename T>
const mdcg::EdgeKernels<T>& kernels_of(const std::string& level) {
    for (const auto& table : mdcg::simd_tables<T>())
        if (level == table.name) return table;
    throw std::invalid_argument("this CPU has no " + level);
}

// basis and slope [steps][n] of EdgeKernels::splines; n is a multiple of 16.
template <typename T>
py::tuple splines(const std::vector<double>& place, const std::vector<double>& within,
                  const std::vector<double>& by_length, const std::string& level) {
    constexpr std::size_t STEPS = mdcg::TABLE_STEPS<T>;
    const std::size_t n = place.size();
    if (n % 16 != 0 || within.size() != n || by_length.size() != n)
        throw std::invalid_argument("expected as many of each, a multiple of 16");
    std::vector<T> basis(STEPS * n), slope(STEPS * n);
    kernels_of<T>(level).splines(static_cast<std::int64_t>(n), place.data(), within.data(),
                                 by_length.data(), static_cast<std::int64_t>(n), basis.data(),
                                 slope.data());
    return py::make_tuple(basis, slope);
}

// Harmonics [n][(l_max+1)^2] of unit vectors [n][3], and sum_lm d dY/d(unit) [n][3].
template <typename T>
py::tuple harmonics(int l_max, const std::string& normalization, const Matrix& unit,
                    const Matrix& d, const std::string& level) {
    const mdcg::EdgeKernels<T>& kernels = kernels_of<T>(level);
    const std::vector<T> factors = mdcg::harmonic_factors<T>(l_max, normalization);
    const auto n = static_cast<std::int64_t>(unit.shape(0)), rows = std::int64_t(factors.size());
    if (unit.ndim() != 2 || unit.shape(1) != 3 || d.ndim() != 2 || d.shape(0) != n ||
        d.shape(1) != rows)
        throw std::invalid_argument("expected unit [n, 3] and d [n, (l_max + 1)^2]");
    const std::int64_t capacity = (n + 15) / 16 * 16;
    const auto size = [&](std::int64_t k) { return static_cast<std::size_t>(k * capacity); };
    std::vector<T> u(size(3)), gradient(size(3)), y(size(rows)), dy(size(rows));
    for (std::int64_t e = 0; e < n; ++e) {
        for (int k = 0; k < 3; ++k)
            u[static_cast<std::size_t>(k * capacity + e)] = static_cast<T>(unit.at(e, k));
        for (std::int64_t k = 0; k < rows; ++k)
            dy[static_cast<std::size_t>(k * capacity + e)] = static_cast<T>(d.at(e, k));
    }
    kernels.harmonics(l_max, factors.data(), capacity, u.data(), y.data());
    kernels.harmonics_gradient(l_max, factors.data(), capacity, u.data(), dy.data(),
                               gradient.data());
    py::array_t<double> out({n, rows}), back({n, std::int64_t(3)});
    for (std::int64_t e = 0; e < n; ++e) {
        for (std::int64_t k = 0; k < rows; ++k)
            out.mutable_at(e, k) = y[static_cast<std::size_t>(k * capacity + e)];
        for (int k = 0; k < 3; ++k)
            back.mutable_at(e, k) = gradient[static_cast<std::size_t>(k * capacity + e)];
    }
    return py::make_tuple(out, back);
}

}  // namespace

void register_edges(py::module_& m) {
    m.def("simd_levels", [] {
        std::vector<std::string> names;
        for (const auto& table : mdcg::simd_tables<double>()) names.emplace_back(table.name);
        return names;
    });
    m.def(
        "edge_harmonics",
        [](int l_max, const std::string& normalization, const Matrix& unit, const Matrix& d,
           bool double_precision, const std::string& level) {
            return (double_precision ? &harmonics<double> : &harmonics<float>)(l_max, normalization,
                                                                               unit, d, level);
        },
        py::arg("l_max"), py::arg("normalization"), py::arg("unit"), py::arg("d"),
        py::arg("double_precision"), py::arg("level"));
    m.def(
        "edge_splines",
        [](const std::vector<double>& place, const std::vector<double>& within,
           const std::vector<double>& by_length, bool double_precision, const std::string& level) {
            return (double_precision ? &splines<double> : &splines<float>)(place, within, by_length,
                                                                           level);
        },
        py::arg("place"), py::arg("within"), py::arg("by_length"), py::arg("double_precision"),
        py::arg("level"));
    m.def(
        "depends_on_sender",
        [](int num_types, const std::vector<double>& r_max, const std::vector<double>& r_0,
           const std::vector<double>& sender_table) {
            mdcg::RadialSpec spec;
            spec.num_types = num_types;
            spec.r_max = r_max;
            spec.r_0 = r_0;
            spec.sender_table = sender_table;
            return spec.depends_on_sender();
        },
        py::arg("num_types"), py::arg("r_max"), py::arg("r_0"), py::arg("sender_table"));
    m.def(
        "needs_rebuild",
        [](const Matrix& before, const Matrix& now, double skin, int threads) {
            mdcg::VerletSkin watch(1.0, skin);
            watch.needs_rebuild(before.shape(0), before.data(), nullptr, nullptr);
            watch.keep(before.data());
            return watch.needs_rebuild(now.shape(0), now.data(), nullptr, nullptr, threads) ==
                   mdcg::ListChange::edges;
        },
        py::arg("before"), py::arg("now"), py::arg("skin"), py::arg("threads"));
}
