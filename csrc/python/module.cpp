// Python bindings of the core: libraries, launches, edge orders, processor.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "core/cpu.hpp"
#include "core/edges.hpp"
#include "core/launch.hpp"
#include "core/pairs.hpp"
#include "core/shared_library.hpp"
#include "core/wigner_3j.hpp"
#include "register_engine.hpp"

namespace py = pybind11;

namespace {

// Moves vectors into numpy arrays that own them.
template <typename T>
py::array_t<T> to_array(std::vector<T>&& values) {
    auto owner = std::make_unique<std::vector<T>>(std::move(values));
    T* data = owner->data();
    const auto size = static_cast<py::ssize_t>(owner->size());
    py::capsule base(owner.get(), [](void* p) { delete static_cast<std::vector<T>*>(p); });
    owner.release();
    return py::array_t<T>({size}, {static_cast<py::ssize_t>(sizeof(T))}, data, base);
}

template <typename... T>
py::tuple to_arrays(std::vector<T>&... values) {
    return py::make_tuple(to_array(std::move(values))...);
}

template <typename Function>
auto without_gil(const Function& function) {
    const py::gil_scoped_release release;
    return function();
}

// Whether two arrays have the same shape and, up to the tolerance, the same numbers. Arrays with
// the same bytes agree even if they contain NaN.
bool arrays_agree(const py::array& one, const py::array& other, double tolerance) {
    const auto shape = [](const py::array& array) {
        return std::vector<py::ssize_t>(array.shape(), array.shape() + array.ndim());
    };
    if (shape(one) != shape(other)) return false;
    const auto is_plain = [](const py::array& array) {
        return (array.flags() & py::array::c_style) != 0;
    };
    if (one.dtype().equal(other.dtype()) && is_plain(one) && is_plain(other) &&
        one.dtype().kind() != 'O') {
        const auto* const a = static_cast<const char*>(one.data());
        if (std::memcmp(a, other.data(), static_cast<std::size_t>(one.nbytes())) == 0) return true;
    }
    const auto a = py::array_t<double, py::array::c_style | py::array::forcecast>(one);
    const auto b = py::array_t<double, py::array::c_style | py::array::forcecast>(other);
    for (py::ssize_t i = 0; i < a.size(); ++i)
        if (!(std::abs(a.data()[i] - b.data()[i]) <= tolerance)) return false;
    return true;
}

// Calls a function with two contiguous arrays of indices of one type, int32 or int64.
template <typename Function>
auto with_indices(const py::array& sender, const py::array& receiver, const Function& function) {
    const bool is_short = sender.itemsize() == 4;
    const auto *const s = sender.data(), *const r = receiver.data();
    const py::gil_scoped_release release;
    if (is_short)
        return function(static_cast<const std::int32_t*>(s), static_cast<const std::int32_t*>(r));
    return function(static_cast<const std::int64_t*>(s), static_cast<const std::int64_t*>(r));
}

// The edges of a graph and the order that all passes need.
struct Edges {
    Edges(const py::array& sender, const py::array& receiver, std::int64_t num_senders,
          std::int64_t num_receivers, std::int64_t edges_per_task)
        : list(with_indices(sender, receiver,
                            [&, size = sender.size()](const auto* s, const auto* r) {
                                return mdcg::EdgeList(s, r, size, num_senders, num_receivers);
                            })),
          by_receiver(without_gil([&] { return mdcg::order_by_receiver(list, edges_per_task); })) {}

    bool same(const py::array& sender, const py::array& receiver, std::int64_t num_senders,
              std::int64_t num_receivers) const {
        return sender.size() == static_cast<py::ssize_t>(list.sender.size()) &&
               num_senders == list.num_senders && num_receivers == list.num_receivers &&
               with_indices(sender, receiver, [&](const auto* s, const auto* r) {
                   return std::equal(list.sender.begin(), list.sender.end(), s) &&
                          std::equal(list.receiver.begin(), list.receiver.end(), r);
               });
    }

    mdcg::EdgeList list;
    mdcg::ReceiverOrder by_receiver;
};

// Calls a function with edge values: rows of directions, which may be columns of a larger matrix,
// and contiguous rows of features of the same type, float or double.
template <typename Function>
auto with_values(const py::array& directions, const py::array& features, const Function& function) {
    const bool is_single = directions.itemsize() == 4;
    const auto *const d = directions.data(), *const f = features.data();
    const std::int64_t stride = directions.strides(0) / directions.itemsize();
    const std::int64_t width = features.shape(1);
    const py::gil_scoped_release release;
    if (is_single)
        return function(mdcg::EdgeValues<float>{static_cast<const float*>(d), stride,
                                                static_cast<const float*>(f), width});
    return function(mdcg::EdgeValues<double>{static_cast<const double*>(d), stride,
                                             static_cast<const double*>(f), width});
}

void register_pairs(py::module_& m) {
    py::class_<mdcg::Pairing, std::shared_ptr<mdcg::Pairing>>(m, "Pairing")
        .def("rows",
             [](const mdcg::Pairing& self) {
                 mdcg::Pairing copy = self;
                 return to_arrays(copy.row, copy.first, copy.second);
             })
        .def(
            "holds",
            [](const mdcg::Pairing& self, const py::array& directions, const py::array& features) {
                return with_values(directions, features, [&](const auto& values) {
                    return mdcg::still_pairs(self, values);
                });
            },
            py::arg("directions"), py::arg("features"));
}

mdcg::HostKernel kernel(std::uintptr_t value) { return reinterpret_cast<mdcg::HostKernel>(value); }

}  // namespace

PYBIND11_MODULE(_core, m) {
    m.doc() = "Compiled core of mdcg; private, see mdcg.runtime and mdcg.ops.";
    m.attr("__version__") = MDCG_VERSION;

    py::class_<mdcg::SharedLibrary, std::shared_ptr<mdcg::SharedLibrary>>(m, "SharedLibrary")
        .def(py::init<const std::string&>(), py::arg("path"))
        .def("symbol", [](const mdcg::SharedLibrary& self, const std::string& name) {
            return reinterpret_cast<std::uintptr_t>(self.symbol(name));
        });

    register_pairs(m);
    py::class_<Edges, std::shared_ptr<Edges>>(m, "Edges")
        .def(py::init<const py::array&, const py::array&, std::int64_t, std::int64_t,
                      std::int64_t>(),
             py::arg("sender"), py::arg("receiver"), py::arg("num_senders"),
             py::arg("num_receivers"), py::arg("edges_per_task"))
        .def("same", &Edges::same, py::arg("sender"), py::arg("receiver"), py::arg("num_senders"),
             py::arg("num_receivers"))
        .def("by_receiver",
             [](const Edges& self) {
                 mdcg::ReceiverOrder o = self.by_receiver;
                 return to_arrays(o.order, o.sender, o.row_ptr, o.task_ptr);
             })
        .def(
            "by_block",
            [](const Edges& self, std::int64_t block_size) {
                mdcg::BlockOrder o = without_gil(
                    [&] { return mdcg::order_by_block(self.list, self.by_receiver, block_size); });
                return to_arrays(o.order, o.sender, o.receiver, o.block_ptr, o.tiles, o.round_ptr);
            },
            py::arg("block_size"))
        .def(
            "pairs",
            [](const Edges& self, const py::array& directions, const py::array& features) {
                return std::make_shared<mdcg::Pairing>(with_values(
                    directions, features,
                    [&](const auto& values) { return mdcg::match_pairs(self.list, values); }));
            },
            py::arg("directions"), py::arg("features"))
        .def(
            "by_pair",
            [](const Edges& self, const mdcg::Pairing& pairing, std::int64_t block_size) {
                mdcg::PairOrder o = without_gil(
                    [&] { return mdcg::order_by_pair(self.list, pairing, block_size); });
                return to_arrays(o.order, o.sender, o.receiver, o.tiles, o.round_ptr);
            },
            py::arg("pairing"), py::arg("block_size"));

    m.def(
        "launch",
        [](std::uintptr_t function, const std::vector<std::int64_t>& arg, std::int64_t num_tasks,
           int num_threads, std::size_t scratch_bytes) {
            const std::int64_t round_ptr[2] = {0, num_tasks};
            without_gil([&] {
                mdcg::launch_rounds(kernel(function), arg.data(), round_ptr, 1, num_threads,
                                    scratch_bytes);
            });
        },
        py::arg("function"), py::arg("arg"), py::arg("num_tasks"), py::arg("num_threads"),
        py::arg("scratch_bytes"));
    m.def(
        "launch_rounds",
        [](std::uintptr_t function, const std::vector<std::int64_t>& arg, std::uintptr_t round_ptr,
           std::int64_t num_rounds, int num_threads, std::size_t scratch_bytes) {
            without_gil([&] {
                mdcg::launch_rounds(kernel(function), arg.data(),
                                    reinterpret_cast<const std::int64_t*>(round_ptr), num_rounds,
                                    num_threads, scratch_bytes);
            });
        },
        py::arg("function"), py::arg("arg"), py::arg("round_ptr"), py::arg("num_rounds"),
        py::arg("num_threads"), py::arg("scratch_bytes"));
    m.def("arrays_agree", &arrays_agree, py::arg("one"), py::arg("other"), py::arg("tolerance"),
          "Return whether arrays have the same shape and, up to the tolerance, the same numbers.");
    m.def(
        "wigner_3j",
        [](int l1, int l2, int l3) {
            const std::vector<double> symbol = mdcg::wigner_3j(l1, l2, l3);
            return py::array_t<double>({2 * l1 + 1, 2 * l2 + 1, 2 * l3 + 1}, symbol.data());
        },
        py::arg("l1"), py::arg("l2"), py::arg("l3"));
    m.def("instruction_set_level", &mdcg::instruction_set_level);
    m.def("l2_cache_bytes", &mdcg::l2_cache_bytes);
    register_engine(m);
    register_kernels(m);
}
