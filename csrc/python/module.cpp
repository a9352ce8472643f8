// Python bindings of the core: libraries, launches, edge orders, processor.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

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
#include "register_cuda.hpp"
#include "register_engine.hpp"

namespace py = pybind11;

namespace {

// Moves a vector into a numpy array that owns it.
template <typename T>
py::array_t<T> to_array(std::vector<T>&& values) {
    auto owner = std::make_unique<std::vector<T>>(std::move(values));
    T* data = owner->data();
    const auto size = static_cast<py::ssize_t>(owner->size());
    py::capsule base(owner.get(), [](void* p) { delete static_cast<std::vector<T>*>(p); });
    owner.release();
    return py::array_t<T>({size}, {static_cast<py::ssize_t>(sizeof(T))}, data, base);
}

template <typename T>
const T* address(std::uintptr_t value) {
    return reinterpret_cast<const T*>(value);
}

// The two edge orders of one graph; keeps its own copy of the indices.
class Edges {
public:
    Edges(std::uintptr_t sender, std::uintptr_t receiver, std::int64_t num_edges, int itemsize,
          std::int64_t num_senders, std::int64_t num_receivers, std::int64_t edges_per_task)
        : itemsize_(itemsize),
          num_edges_(num_edges),
          num_senders_(num_senders),
          num_receivers_(num_receivers) {
        const auto bytes = static_cast<std::size_t>(num_edges) * static_cast<std::size_t>(itemsize);
        sender_.assign(address<char>(sender), address<char>(sender) + bytes);
        receiver_.assign(address<char>(receiver), address<char>(receiver) + bytes);
        by_receiver_ = itemsize == 4
                           ? mdcg::order_by_receiver(list<std::int32_t>(), edges_per_task)
                           : mdcg::order_by_receiver(list<std::int64_t>(), edges_per_task);
    }

    bool same(std::uintptr_t sender, std::uintptr_t receiver, std::int64_t num_edges, int itemsize,
              std::int64_t num_senders, std::int64_t num_receivers) const {
        return num_edges == num_edges_ && itemsize == itemsize_ && num_senders == num_senders_ &&
               num_receivers == num_receivers_ &&
               std::memcmp(sender_.data(), address<char>(sender), sender_.size()) == 0 &&
               std::memcmp(receiver_.data(), address<char>(receiver), receiver_.size()) == 0;
    }

    const mdcg::ReceiverOrder& by_receiver() const { return by_receiver_; }

    mdcg::BlockOrder by_block(std::int64_t block_size) const {
        return itemsize_ == 4
                   ? mdcg::order_by_block(list<std::int32_t>(), by_receiver_, block_size)
                   : mdcg::order_by_block(list<std::int64_t>(), by_receiver_, block_size);
    }

    template <typename T>
    mdcg::Pairing pairs(const mdcg::EdgeValues<T>& values) const {
        return itemsize_ == 4 ? mdcg::match_pairs(list<std::int32_t>(), values)
                              : mdcg::match_pairs(list<std::int64_t>(), values);
    }

    mdcg::PairOrder by_pair(const mdcg::Pairing& pairing, std::int64_t block_size) const {
        return itemsize_ == 4 ? mdcg::order_by_pair(list<std::int32_t>(), pairing, block_size)
                              : mdcg::order_by_pair(list<std::int64_t>(), pairing, block_size);
    }

private:
    template <typename Index>
    mdcg::EdgeList<Index> list() const {
        return {reinterpret_cast<const Index*>(sender_.data()),
                reinterpret_cast<const Index*>(receiver_.data()), num_edges_, num_senders_,
                num_receivers_};
    }

    int itemsize_;
    std::int64_t num_edges_, num_senders_, num_receivers_;
    std::vector<char> sender_, receiver_;
    mdcg::ReceiverOrder by_receiver_;
};

// Calls a function with edge values of the type of that size.
template <typename Function>
auto with_values(std::uintptr_t directions, std::int64_t direction_stride, std::uintptr_t features,
                 std::int64_t num_features, int itemsize, const Function& function) {
    py::gil_scoped_release release;
    if (itemsize == 4)
        return function(mdcg::EdgeValues<float>{address<float>(directions), direction_stride,
                                                address<float>(features), num_features});
    return function(mdcg::EdgeValues<double>{address<double>(directions), direction_stride,
                                             address<double>(features), num_features});
}

void register_pairs(py::module_& m) {
    py::class_<mdcg::Pairing, std::shared_ptr<mdcg::Pairing>>(m, "Pairing")
        .def("rows",
             [](const mdcg::Pairing& self) {
                 mdcg::Pairing copy = self;
                 return py::make_tuple(to_array(std::move(copy.row)),
                                       to_array(std::move(copy.first)),
                                       to_array(std::move(copy.second)));
             })
        .def(
            "holds",
            [](const mdcg::Pairing& self, std::uintptr_t directions, std::int64_t stride,
               std::uintptr_t features, std::int64_t num_features, int itemsize) {
                return with_values(
                    directions, stride, features, num_features, itemsize,
                    [&](const auto& values) { return mdcg::still_pairs(self, values); });
            },
            py::arg("directions"), py::arg("direction_stride"), py::arg("features"),
            py::arg("num_features"), py::arg("itemsize"));
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
        .def(py::init<std::uintptr_t, std::uintptr_t, std::int64_t, int, std::int64_t, std::int64_t,
                      std::int64_t>(),
             py::arg("sender"), py::arg("receiver"), py::arg("num_edges"), py::arg("itemsize"),
             py::arg("num_senders"), py::arg("num_receivers"), py::arg("edges_per_task"),
             py::call_guard<py::gil_scoped_release>())
        .def("same", &Edges::same, py::call_guard<py::gil_scoped_release>())
        .def("by_receiver",
             [](const Edges& self) {
                 mdcg::ReceiverOrder o = self.by_receiver();
                 return py::make_tuple(to_array(std::move(o.order)), to_array(std::move(o.sender)),
                                       to_array(std::move(o.row_ptr)),
                                       to_array(std::move(o.task_ptr)));
             })
        .def(
            "by_block",
            [](const Edges& self, std::int64_t block_size) {
                mdcg::BlockOrder o;
                {
                    py::gil_scoped_release release;
                    o = self.by_block(block_size);
                }
                return py::make_tuple(
                    to_array(std::move(o.order)), to_array(std::move(o.sender)),
                    to_array(std::move(o.receiver)), to_array(std::move(o.block_ptr)),
                    to_array(std::move(o.tiles)), to_array(std::move(o.round_ptr)));
            },
            py::arg("block_size"))
        .def(
            "pairs",
            [](const Edges& self, std::uintptr_t directions, std::int64_t stride,
               std::uintptr_t features, std::int64_t num_features, int itemsize) {
                return std::make_shared<mdcg::Pairing>(
                    with_values(directions, stride, features, num_features, itemsize,
                                [&](const auto& values) { return self.pairs(values); }));
            },
            py::arg("directions"), py::arg("direction_stride"), py::arg("features"),
            py::arg("num_features"), py::arg("itemsize"))
        .def(
            "by_pair",
            [](const Edges& self, const mdcg::Pairing& pairing, std::int64_t block_size) {
                mdcg::PairOrder o;
                {
                    py::gil_scoped_release release;
                    o = self.by_pair(pairing, block_size);
                }
                return py::make_tuple(to_array(std::move(o.order)), to_array(std::move(o.sender)),
                                      to_array(std::move(o.receiver)), to_array(std::move(o.tiles)),
                                      to_array(std::move(o.round_ptr)));
            },
            py::arg("pairing"), py::arg("block_size"));

    m.def(
        "launch",
        [](std::uintptr_t function, const std::vector<std::int64_t>& arg, std::int64_t num_tasks,
           int num_threads, std::size_t scratch_bytes) {
            py::gil_scoped_release release;
            mdcg::launch(kernel(function), arg.data(), num_tasks, num_threads, scratch_bytes);
        },
        py::arg("function"), py::arg("arg"), py::arg("num_tasks"), py::arg("num_threads"),
        py::arg("scratch_bytes"));
    m.def(
        "launch_rounds",
        [](std::uintptr_t function, const std::vector<std::int64_t>& arg, std::uintptr_t round_ptr,
           std::int64_t num_rounds, int num_threads, std::size_t scratch_bytes) {
            py::gil_scoped_release release;
            mdcg::launch_rounds(kernel(function), arg.data(), address<std::int64_t>(round_ptr),
                                num_rounds, num_threads, scratch_bytes);
        },
        py::arg("function"), py::arg("arg"), py::arg("round_ptr"), py::arg("num_rounds"),
        py::arg("num_threads"), py::arg("scratch_bytes"));
    m.def("instruction_set_level", &mdcg::instruction_set_level);
    m.def("l2_cache_bytes", &mdcg::l2_cache_bytes);
    register_cuda(m);
    register_engine(m);
    register_kernels(m);
    register_neighbors(m);
}
