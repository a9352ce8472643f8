#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/backend/cpu/edge_kernels.hpp"
#include "engine/backend/cpu/simd.hpp"
#include "engine/edges/harmonics.hpp"
#include "engine/edges/radial.hpp"
#include "engine/edges/radial_table.hpp"
#include "engine/package/package.hpp"

namespace py = pybind11;

namespace {

using Matrix = py::array_t<double, py::array::c_style | py::array::forcecast>;

// Harmonics [n][(l_max+1)^2] of unit vectors [n][3], and sum_lm d dY/d(unit) [n][3].
template <typename T>
py::tuple harmonics(int l_max, const std::string& normalization, const Matrix& unit,
                    const Matrix& d, const std::string& level) {
    const std::vector<mdcg::SimdTable<T>>& tables = mdcg::simd_tables<T>();
    const auto found = std::find_if(tables.begin(), tables.end(), [&](const auto& table) {
        return std::string(table.name) == level;
    });
    if (found == tables.end()) throw std::invalid_argument("this CPU has no " + level);
    const mdcg::EdgeKernels<T>& kernels = *found;
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

mdcg::RadialSpec radial_spec(const mdcg::Package& package, std::size_t layer, int outputs) {
    const nlohmann::json& layers = package.manifest().at("layers");
    const mdcg::Fields fields(layers.at(layer), package, "layer " + std::to_string(layer));
    return mdcg::RadialSpec::read(fields.object("radial"), mdcg::read_model_info(package), outputs);
}

int last_outputs(const mdcg::Package& package, std::size_t layer) {
    const nlohmann::json& layers =
        package.manifest().at("layers").at(layer).at("radial").at("layers");
    if (layers.empty()) return 1;  // refused where the network is read
    const nlohmann::json& last = layers.back();
    const mdcg::Tensor* weight = package.find(last.at("weight").get<std::string>());
    if (weight == nullptr || weight->shape.size() != 2)
        throw std::invalid_argument("the radial network has no last weight");
    return static_cast<int>(weight->shape[1]);
}

// Weights [n][outputs] at lengths and sum_k d[n][k] dw_k/dr [n].
template <typename T>
py::tuple radial_weights(const std::string& path, std::size_t layer, const Matrix& length,
                         int receiver, int sender, const Matrix& d, int knots) {
    const auto package = mdcg::Package::open(path);
    mdcg::RadialSpec spec = radial_spec(*package, layer, last_outputs(*package, layer));
    const int outputs = spec.layers.back().out;
    const auto n = static_cast<std::int64_t>(length.shape(0));
    const std::int64_t capacity = (n + 15) / 16 * 16;
    std::vector<double> r(static_cast<std::size_t>(capacity), 2e3), slope(r.size());
    std::copy_n(length.data(), n, r.begin());
    const std::vector<std::int32_t> receivers(r.size(), receiver), senders(r.size(), sender);
    const mdcg::RadialEdges edges{n, capacity, r.data(), senders.data(), receivers.data()};
    py::array_t<double> out({n, std::int64_t(outputs)}), back(n);
    if (knots > 0) {
        spec.knots = knots;
        mdcg::WeightColumns columns;
        for (int k = 0; k < outputs; ++k) columns.columns.push_back(k);
        const int panel = mdcg::row_align<T>();
        columns.width = (outputs + panel - 1) / panel * panel;
        mdcg::RadialTable<T> table(spec, columns);
        const std::int32_t types[2] = {receiver, sender}, zero = 0, one = 1;
        table.require(types, &zero, &one, 1, 2);
        std::vector<std::int32_t> knot(r.size());
        std::vector<T> basis(3 * r.size()), slopes(3 * r.size());
        if (!table.look_up(edges, knot.data(), basis.data(), slopes.data()))
            throw std::invalid_argument("a length is too short for the table");
        for (std::int64_t e = 0; e < n; ++e) {
            double total = 0;
            for (int k = 0; k < outputs; ++k) {
                const auto at = [&](int j) {
                    const std::int64_t row = knot[static_cast<std::size_t>(e)] + j;
                    return (k / panel * table.rows() + row) * panel + k % panel;
                };
                double w = table.data()[at(0)], s = 0;
                for (int j = 0; j < 3; ++j) {
                    const double step = table.steps() != nullptr
                                            ? table.steps()[at(j)]
                                            : table.data()[at(j + 1)] - table.data()[at(j)];
                    w += step * basis[static_cast<std::size_t>(j * capacity + e)];
                    s += step * slopes[static_cast<std::size_t>(j * capacity + e)];
                }
                out.mutable_at(e, k) = w;
                total += s * d.at(e, k);
            }
            back.mutable_at(e) = total;
        }
        return py::make_tuple(out, back);
    }
    const mdcg::Radial<T> radial(spec);
    const std::int64_t stride = radial.hidden_stride();
    mdcg::AlignedArray<char> work(radial.work_bytes(capacity));
    mdcg::AlignedArray<T> hidden(static_cast<std::size_t>(capacity * stride));
    radial.forward(edges, {}, {}, work.data(), hidden.data());
    const std::vector<double> last = spec.last();
    const auto weight = [&](int k, int o) {
        return last[static_cast<std::size_t>(k) * static_cast<std::size_t>(outputs) +
                    static_cast<std::size_t>(o)];
    };
    mdcg::AlignedArray<T> d_hidden(hidden.size());
    for (std::int64_t e = 0; e < n; ++e) {
        for (int o = 0; o < outputs; ++o) {
            double w = 0;
            for (int k = 0; k < radial.units(); ++k)
                w += static_cast<double>(hidden[static_cast<std::size_t>(e * stride + k)]) *
                     weight(k, o);
            out.mutable_at(e, o) = w;
        }
        for (int k = 0; k < radial.units(); ++k) {
            double g = 0;
            for (int o = 0; o < outputs; ++o) g += d.at(e, o) * weight(k, o);
            d_hidden[static_cast<std::size_t>(e * stride + k)] = static_cast<T>(g);
        }
    }
    radial.backward(edges, {}, {}, work.data(), d_hidden.data(), slope.data());
    std::copy_n(slope.begin(), n, back.mutable_data());
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
        "radial_weights",
        [](const std::string& path, std::size_t layer, const Matrix& length, int receiver,
           int sender, const Matrix& d, bool double_precision, int knots) {
            return (double_precision
                        ? &radial_weights<double>
                        : &radial_weights<float>)(path, layer, length, receiver, sender, d, knots);
        },
        py::arg("path"), py::arg("layer"), py::arg("length"), py::arg("receiver"),
        py::arg("sender"), py::arg("d"), py::arg("double_precision"), py::arg("knots") = 0);
}
