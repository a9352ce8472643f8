// Python bindings of packages (open, describe, evaluate with numpy arrays) and neighbour lists.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "core/interrupt.hpp"
#include "core/sha256.hpp"
#include "core/threads.hpp"
#include "engine/evaluator.hpp"
#include "engine/neighbors/neighbor_list.hpp"
#include "engine/program.hpp"
#include "register_engine.hpp"

namespace py = pybind11;

namespace {

using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;
using Integers = py::array_t<std::int32_t, py::array::c_style | py::array::forcecast>;
using Longs = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;
using Flags = py::array_t<bool, py::array::c_style | py::array::forcecast>;

// Adds a new array to a dict, and returns its memory.
double* new_array(const py::dict& out, const char* name, std::vector<py::ssize_t> shape) {
    py::array_t<double> values(std::move(shape));
    out[name] = values;
    return values.mutable_data();
}

// The exception that a signal handler of Python raised, such as KeyboardInterrupt.
struct PythonSignal : mdcg::Interrupted {
    py::error_already_set error;
};

void run_signal_handlers() {
    if (getpid() != static_cast<pid_t>(syscall(SYS_gettid))) return;  // not the main thread
    const py::gil_scoped_acquire lock;
    if (PyErr_CheckSignals() != 0) throw PythonSignal();
}

void register_interrupt() {
    mdcg::set_interrupt_poll(&run_signal_handlers);
    py::register_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) std::rethrow_exception(pointer);
        } catch (PythonSignal& signal) {
            signal.error.restore();
        } catch (const mdcg::Interrupted&) {
            PyErr_SetString(PyExc_RuntimeError, "another thread has stopped the work");
        }
    });
}

void check_shape(const py::array& array, const char* name, py::ssize_t rows, py::ssize_t columns) {
    const bool fits = array.ndim() == (columns > 0 ? 2 : 1) && array.shape(0) == rows &&
                      (columns == 0 || array.shape(1) == columns);
    if (fits) return;
    std::string got;
    for (py::ssize_t d = 0; d < array.ndim(); ++d)
        got += (d > 0 ? ", " : "") + std::to_string(array.shape(d));
    mdcg::bad_argument(std::string(name) + " has shape (" + got + "), expected (" +
                       std::to_string(rows) + (columns > 0 ? ", " + std::to_string(columns) : ",") +
                       ")");
}

// A neighbour list that one Python thread uses at a time.
class SharedList {
public:
    SharedList(double cutoff, double skin)
        : list_(std::make_unique<mdcg::NeighborList>(cutoff, skin)) {}
    ~SharedList() {
        if (mutex_.is_orphaned()) (void)list_.release();  // it may be unfinished
    }

    // Locks the list while this object exists. Waiting releases the interpreter's lock, which the
    // holder may need.
    class Held {
    public:
        explicit Held(SharedList& shared)
            : list_(*shared.list_), lock_(shared.mutex_, std::defer_lock) {
            const py::gil_scoped_release release;
            lock_.lock();
        }
        mdcg::NeighborList* operator->() const { return &list_; }
        mdcg::NeighborList& operator*() const { return list_; }

    private:
        mdcg::NeighborList& list_;
        std::unique_lock<mdcg::ForkAwareMutex> lock_;
    };

private:
    std::unique_ptr<mdcg::NeighborList> list_;
    mdcg::ForkAwareMutex mutex_;
};

// Returns copies, because the list reuses its memory.
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

// An evaluator that one Python thread uses at a time.
class PyModel {
public:
    PyModel(std::shared_ptr<const mdcg::Package> file, const mdcg::EvaluatorOptions& options)
        : evaluator_(std::make_unique<mdcg::Evaluator>(std::move(file), options)) {}
    ~PyModel() {
        if (mutex_.is_orphaned()) (void)evaluator_.release();  // it may be in the middle of a call
    }

    template <typename Function>
    auto locked(const Function& function) {
        if (owner_ == std::this_thread::get_id())
            mdcg::bad_argument(
                "the model is being evaluated, and a signal handler that has interrupted the "
                "evaluation uses it: use it after the evaluation");
        py::gil_scoped_release release;
        const std::lock_guard<mdcg::ForkAwareMutex> guard(mutex_);
        const Owner owner(owner_);
        return function(*evaluator_);
    }
    const mdcg::Evaluator& evaluator() const { return *evaluator_; }

    py::dict evaluate(const Doubles& positions, const Integers& types,
                      const std::optional<Doubles>& cell, const std::array<bool, 3>& periodic,
                      const py::object& edges, bool same_edges, bool same_shifts, bool forces,
                      bool virial, bool virials, bool descriptors,
                      const std::optional<Doubles>& energy_weights,
                      const std::optional<Doubles>& inputs) {
        if (positions.ndim() != 2) check_shape(positions, "positions", types.size(), 3);
        const py::ssize_t nodes = positions.shape(0);
        check_shape(positions, "positions", nodes, 3);
        check_shape(types, "types", nodes, 0);
        if (cell) check_shape(*cell, "cell", 3, 3);
        if (energy_weights) check_shape(*energy_weights, "energy_weights", nodes, 0);
        if (inputs) check_shape(*inputs, "inputs", num_inputs(), 0);
        const double* const numbers = inputs ? inputs->data() : nullptr;
        const double* const weights = energy_weights ? energy_weights->data() : nullptr;
        mdcg::System system;
        Integers sender, receiver;
        Doubles shifts;
        const bool given = !edges.is_none();
        if (given) {
            if (cell) mdcg::bad_argument("cell and edges are given, expected one of them");
            system.num_local = system.num_nodes = nodes;
            system.positions = positions.data();
            system.types = types.data();
            system.energy_weights = weights;
            system.inputs = numbers;
        }
        std::optional<SharedList::Held> held;  // locked until the evaluation has read it
        if (py::isinstance<SharedList>(edges)) {
            held.emplace(edges.cast<SharedList&>());
            const mdcg::NeighborList& list = **held;
            if (list.num_atoms() != nodes)
                mdcg::bad_argument("the neighbour list is of " + std::to_string(list.num_atoms()) +
                                   " atoms, expected " + std::to_string(nodes) + ": update it");
            system.list = list.numbers();
            system.num_edges = list.num_edges();
            system.sender = list.sender().data();
            system.receiver = list.receiver().data();
            system.shifts = list.shifts().data();
            system.reversed = true;
            system.cell = list.cell();
            system.periodic = list.periodic();
        } else if (given) {
            if (!py::isinstance<py::tuple>(edges) || py::len(edges) != 3)
                mdcg::bad_argument(
                    "edges are neither a NeighborList nor (sender, receiver, shifts)");
            const py::tuple three = edges;
            sender = Integers::ensure(three[0]);
            receiver = Integers::ensure(three[1]);
            shifts = Doubles::ensure(three[2]);
            if (!sender || !receiver || !shifts) {
                PyErr_Clear();
                mdcg::bad_argument(
                    "edges are (sender, receiver, shifts), expected arrays of numbers");
            }
            check_shape(sender, "sender", sender.size(), 0);
            check_shape(receiver, "receiver", sender.size(), 0);
            check_shape(shifts, "shifts", sender.size(), 3);
            system.num_edges = sender.size();
            system.sender = sender.data();
            system.receiver = receiver.data();
            system.shifts = shifts.data();
        }
        py::dict out;
        mdcg::Results wanted =
            make_arrays(out, nodes, {3, 3}, forces, virial, virials, descriptors);
        double energy = 0;
        if (evaluator_->model().has_energy()) wanted.energy = &energy;
        const double *where = positions.data(), *box = cell ? cell->data() : nullptr;
        const std::int32_t* kinds = types.data();
        locked([&](mdcg::Evaluator& evaluator) {
            if (given && !held && same_edges)
                system.list = {given_.edges, same_shifts ? given_.shifts : 0};
            if (given)
                evaluator.evaluate(system, nullptr, wanted);
            else
                evaluator.evaluate({nodes, where, kinds, box, periodic.data(), evaluator.skin(),
                                    weights, 0, numbers},
                                   wanted);
            given_ = given && !held ? evaluator.list() : mdcg::ListNumbers{};
        });
        if (wanted.energy != nullptr) out["energy"] = energy;
        return out;
    }

    py::dict evaluate_batch(const Longs& first_node, const Integers& types,
                            const std::optional<Doubles>& positions,
                            const std::optional<Doubles>& cells,
                            const std::optional<Flags>& periodic, bool forces, bool virial,
                            bool virials, bool descriptors, const std::optional<Doubles>& inputs,
                            const std::map<std::string, std::uintptr_t>& addresses) {
        const py::ssize_t systems = first_node.size() - 1, nodes = types.size();
        check_shape(first_node, "first_node", std::max<py::ssize_t>(systems + 1, 1), 0);
        if (first_node.at(systems) != nodes)
            mdcg::bad_argument("first_node ends with " + std::to_string(first_node.at(systems)) +
                               ", and there are " + std::to_string(nodes) +
                               " types, expected as many");
        const auto address = [&](const char* name) {
            const auto found = addresses.find(name);
            return found == addresses.end() ? nullptr : reinterpret_cast<double*>(found->second);
        };
        if (positions) check_shape(*positions, "positions", nodes, 3);
        if (cells && (cells->ndim() != 3 || cells->shape(1) != 3 || cells->shape(2) != 3))
            check_shape(*cells, "cells", systems, 3);
        if (cells.has_value() != periodic.has_value() || (cells && cells->shape(0) != systems))
            mdcg::bad_argument("cells and periodic are expected together, of " +
                               std::to_string(systems) + " systems");
        if (periodic) check_shape(*periodic, "periodic", systems, 3);
        mdcg::Batch batch;
        batch.num_systems = systems;
        batch.first_node = first_node.data();
        batch.positions = positions ? positions->data() : address("positions");
        batch.types = types.data();
        batch.cells = cells ? cells->data() : nullptr;
        const auto open = std::make_unique<bool[]>(static_cast<std::size_t>(3 * systems));
        batch.periodic = periodic ? periodic->data() : open.get();
        batch.on_device = !positions;
        batch.num_inputs = num_inputs();
        if (inputs && num_inputs() > 0) {
            check_shape(*inputs, "inputs", systems, num_inputs());
            batch.inputs = inputs->data();
        }
        if (batch.positions == nullptr && nodes > 0)
            mdcg::bad_argument("positions are missing, expected an array or an address");
        py::dict out;
        mdcg::Results wanted{};
        if (batch.on_device) {
            wanted.energy = address("energy");
            wanted.energies = address("energies");
            wanted.forces = address("forces");
            wanted.virial = address("virial");
            wanted.virials = address("virials");
            wanted.descriptors = address("descriptors");
        } else {
            wanted = make_arrays(out, nodes, {systems, 3, 3}, forces, virial, virials, descriptors);
            if (evaluator_->model().has_energy())
                wanted.energy = new_array(out, "energy", {systems});
        }
        locked([&](mdcg::Evaluator& evaluator) { evaluator.evaluate(batch, wanted); });
        return out;
    }

private:
    py::ssize_t num_inputs() const {
        return static_cast<py::ssize_t>(evaluator_->info().inputs.size());
    }

    // New arrays in `out` for all results that are wanted, except the energy.
    mdcg::Results make_arrays(const py::dict& out, py::ssize_t nodes,
                              const std::vector<py::ssize_t>& virial_shape, bool forces,
                              bool virial, bool virials, bool descriptors) const {
        mdcg::Results wanted{};
        if (evaluator_->model().has_energy()) wanted.energies = new_array(out, "energies", {nodes});
        if (forces) wanted.forces = new_array(out, "forces", {nodes, 3});
        if (virial) wanted.virial = new_array(out, "virial", virial_shape);
        if (virials) wanted.virials = new_array(out, "virials", {nodes, 3, 3});
        if (descriptors)
            wanted.descriptors =
                new_array(out, "descriptors", {nodes, evaluator_->model().descriptor_width()});
        return wanted;
    }

    // Notes the current thread as the owner of the mutex.
    class Owner {
    public:
        explicit Owner(std::atomic<std::thread::id>& id) : id_(id) {
            id_ = std::this_thread::get_id();
        }
        ~Owner() { id_ = std::thread::id(); }

    private:
        std::atomic<std::thread::id>& id_;
    };

    std::unique_ptr<mdcg::Evaluator> evaluator_;
    mdcg::ForkAwareMutex mutex_;
    std::atomic<std::thread::id> owner_{};
    mdcg::ListNumbers given_;  // numbers of the list, if the last call gave edges as arrays
};

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

}  // namespace

void register_engine(py::module_& m) {
    register_error(m, "EngineError", "kind", &mdcg::EngineError::kind);
    register_interrupt();
    register_neighbors(m);
    m.def(
        "read_package",
        [](const std::string& path) {
            const auto package = mdcg::Package::open(path);
            for (const auto& network : mdcg::networks_of(package)) mdcg::validate(network);
            py::dict tensors;
            for (const auto& [name, tensor] : package->tensors())
                tensors[py::str(name)] =
                    py::array(py::dtype(mdcg::about(tensor.dtype).name), tensor.shape, tensor.data);
            return py::make_tuple(package->manifest().dump(), tensors);
        },
        py::arg("path"));
    m.def(
        "check_package_bytes",
        [](const py::bytes& data, const std::string& name) {
            const auto package =
                mdcg::Package::parse(std::string(data), name, mdcg::Package::Kind::model);
            for (const auto& network : mdcg::networks_of(package)) mdcg::validate(network);
        },
        py::arg("data"), py::arg("name"));
    const auto input_of = [](bool whole, std::optional<std::int64_t> lowest,
                             std::optional<std::int64_t> count) {
        return mdcg::Input{"", whole, lowest, count.value_or(0)};
    };
    m.def(
        "input_range",
        [=](bool whole, std::optional<std::int64_t> lowest, std::optional<std::int64_t> count) {
            return input_of(whole, lowest, count).range_text();
        },
        py::arg("whole"), py::arg("lowest"), py::arg("count"),
        "The values of an input, for messages.");
    m.def(
        "input_takes",
        [=](bool whole, std::optional<std::int64_t> lowest, std::optional<std::int64_t> count,
            double value) { return input_of(whole, lowest, count).takes(value); },
        py::arg("whole"), py::arg("lowest"), py::arg("count"), py::arg("value"),
        "Whether a model can be evaluated with a value of an input.");
    m.def(
        "sha256",
        [](const py::buffer& data, bool plain) {
            const py::buffer_info info = data.request();
            return mdcg::Sha256(plain)
                .update(info.ptr, static_cast<std::size_t>(info.size * info.itemsize))
                .hex();
        },
        py::arg("data"), py::kw_only(), py::arg("plain") = false);
    py::class_<PyModel> model(m, "Model", "A package, opened; threads take it in turns.");
    model
        .def(py::init([](const std::variant<std::string, const PyModel*>& package,
                         const std::string& device, const std::string& kernels, int threads,
                         double skin, const std::string& precision, const std::string& dispersion,
                         const std::string& damping, double dispersion_cutoff,
                         const std::string& memory, int memory_models, bool fixed_waves) {
                 const auto* path = std::get_if<std::string>(&package);
                 return std::make_unique<PyModel>(
                     path != nullptr ? mdcg::Package::open(*path)
                                     : std::get<const PyModel*>(package)->evaluator().file(),
                     mdcg::EvaluatorOptions{device,
                                            kernels,
                                            threads,
                                            skin,
                                            precision,
                                            {dispersion, damping, dispersion_cutoff},
                                            memory,
                                            memory_models,
                                            fixed_waves});
             }),
             py::arg("package").none(false), py::kw_only(), py::arg("device") = "cpu",
             py::arg("kernels") = "auto", py::arg("threads") = 0,
             py::arg("skin") = mdcg::EvaluatorOptions().skin, py::arg("precision") = "",
             py::arg("dispersion") = "", py::arg("damping") = mdcg::DispersionChoice().damping,
             py::arg("dispersion_cutoff") = mdcg::DispersionChoice().cutoff, py::arg("memory") = "",
             py::arg("memory_models") = 1, py::arg("fixed_waves") = false,
             py::call_guard<py::gil_scoped_release>(),
             "Open a package, or with `dispersion` the dispersion that it holds. A model in place "
             "of a path is one whose package is opened once more, as it was read then.")
        .def(
            "evaluate", &PyModel::evaluate, py::arg("positions"), py::arg("types"), py::kw_only(),
            py::arg("cell") = py::none(), py::arg("periodic") = std::array<bool, 3>{},
            py::arg("edges") = py::none(), py::arg("same_edges") = false,
            py::arg("same_shifts") = false, py::arg("forces") = true, py::arg("virial") = false,
            py::arg("virials") = false, py::arg("descriptors") = false,
            py::arg("energy_weights") = py::none(), py::arg("inputs") = py::none(),
            "Return energy (float), energies and what was asked for (arrays) by name. Edges are a "
            "NeighborList or arrays of sender, receiver and shifts. `same_edges` and `same_shifts` "
            "say that arrays are those of the last call; a NeighborList says it by itself. With "
            "`energy_weights`, one for each node, forces and virials are derivatives of the "
            "weighted sum of energies. `inputs` has a number for each of the model's inputs, NaN "
            "for its default.")
        .def("evaluate_batch", &PyModel::evaluate_batch, py::arg("first_node"), py::arg("types"),
             py::arg("positions") = py::none(), py::kw_only(), py::arg("cells") = py::none(),
             py::arg("periodic") = py::none(), py::arg("forces") = true, py::arg("virial") = false,
             py::arg("virials") = false, py::arg("descriptors") = false,
             py::arg("inputs") = py::none(),
             py::arg("addresses") = std::map<std::string, std::uintptr_t>(),
             "Evaluate systems that do not interact; energy, virial and `inputs` have a row for "
             "each. Without "
             "`positions` these are read, and the results written, at `addresses` in the memory of "
             "the model's device, by the names of the results.")
        .def("release", [](PyModel& self) { self.locked([](mdcg::Evaluator& e) { e.release(); }); })
        .def("prepare", [](PyModel& self) { self.locked([](mdcg::Evaluator& e) { e.prepare(); }); })
        .def(
            "set_threads",
            [](PyModel& self, int threads) {
                self.locked([&](mdcg::Evaluator& e) { e.set_threads(threads); });
            },
            py::arg("threads"))
        .def("report",
             [](PyModel& self) {
                 return self.locked([](mdcg::Evaluator& e) { return e.report(); });
             })
        .def("summary", [](PyModel& self) {
            return self.locked([](mdcg::Evaluator& e) { return e.summary(); });
        });
    const auto property = [&](const char* name, auto get) {
        model.def_property_readonly(name,
                                    [get](const PyModel& self) { return get(self.evaluator()); });
    };
    using Evaluator = const mdcg::Evaluator&;
    property("manifest", [](Evaluator e) { return e.package().manifest_text(); });
    property("has_energy", [](Evaluator e) { return e.model().has_energy(); });
    property("digest", [](Evaluator e) { return e.package().digest(); });
    property("type_names", [](Evaluator e) { return e.info().type_names; });
    property("atomic_numbers", [](Evaluator e) { return e.info().atomic_numbers; });
    property("inputs", [](Evaluator e) {
        py::list found;
        for (const mdcg::Input& input : e.info().inputs) {
            py::dict entry;
            entry["name"] = input.name;
            entry["default"] = input.default_value;
            entry["expected"] = input.range_text();
            found.append(entry);
        }
        return found;
    });
    property("fixed_inputs", [](Evaluator e) { return e.info().fixed_inputs; });
    property("r_max", [](Evaluator e) { return e.info().r_max; });
    property("model_class", [](Evaluator e) { return e.info().model_class; });
    property("dtype",
             [](Evaluator e) { return e.info().double_precision ? "float64" : "float32"; });
    property("num_exchanges", [](Evaluator e) { return e.model().num_exchanges(); });
    property("is_long_range", [](Evaluator e) { return e.model().reads_system(); });
    property("descriptor_width", [](Evaluator e) { return e.model().descriptor_width(); });
}
