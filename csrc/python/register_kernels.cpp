// Python binding of what makes kernels: the cache, compilers, and what packages need.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/cpu.hpp"
#include "core/interrupt.hpp"
#include "core/kernel_cache.hpp"
#include "core/notice.hpp"
#include "core/process.hpp"
#include "engine/cuda/model.hpp"
#include "engine/error.hpp"
#include "engine/kernels/kernel_file.hpp"
#include "engine/kernels/kernel_finder.hpp"
#include "engine/program.hpp"
#include "register_engine.hpp"

namespace py = pybind11;

namespace {

// Ends the processes that other threads of Python wait for.
struct StopFlag {
    std::atomic<bool> stop{false};
};

// Calls a function without Python's lock. Where the flag is set, it ends with an error.
template <typename Function>
auto until_stopped(StopFlag* flag, const char* error, const Function& function) {
    py::gil_scoped_release release;
    if (flag == nullptr) return function();
    const mdcg::HelperScope scope(flag->stop);
    try {
        return function();
    } catch (const mdcg::Interrupted&) {
        throw std::runtime_error(error);
    }
}

py::tuple run_process(const std::vector<std::string>& command, int seconds, StopFlag* flag) {
    mdcg::ProcessOptions options;
    options.seconds = seconds;
    const mdcg::ProcessResult done =
        until_stopped(flag, "was stopped", [&] { return mdcg::run_process(command, options); });
    return py::make_tuple(done.status, py::bytes(done.messages));
}

std::unique_ptr<mdcg::FileLock> lock(const std::string& path, StopFlag* flag) {
    return until_stopped(flag, "the compilation was stopped",
                         [&] { return std::make_unique<mdcg::FileLock>(path); });
}

// The function of Python that takes sentences for users.
py::object& listener() {
    static py::object* const function = new py::object();  // it outlives the interpreter
    return *function;
}

void tell_listener(const std::string& sentence) {
    const py::gil_scoped_acquire gil;
    try {
        listener()(py::str(sentence));
    } catch (py::error_already_set& error) {
        error.discard_as_unraisable("mdcg._core.set_notice");
    }
}

py::list cuda_kernel_sources(const std::string& path, const std::string& target,
                             const std::string& precision, const std::string& passes) {
    const int capability = mdcg::parse_cuda_target(target);
    if (capability == 0)
        mdcg::bad_argument("target is '" + target + "', expected one such as 'sm_90'");
    std::vector<mdcg::CudaKernelSource> texts;
    {
        py::gil_scoped_release release;
        const auto package = mdcg::Package::open(path);
        const mdcg::CudaPrecision chosen =
            mdcg::parse_precision(precision, *package, capability, target);
        texts = mdcg::cuda_kernel_sources(package, capability, chosen, passes);
    }
    py::list out;
    for (const mdcg::CudaKernelSource& text : texts)
        out.append(py::make_tuple(text.key, text.name, text.text));
    return out;
}

// The problem that a package states, after all checks of its layers.
std::string kernel_problem(const std::string& path) {
    const py::gil_scoped_release release;
    const auto package = mdcg::Package::open(path);
    const std::string refusal = mdcg::validate(*package).kernel_refusal;
    if (!refusal.empty())
        throw mdcg::EngineError(mdcg::ErrorKind::unsupported,
                                path + ": " + refusal + ", so it runs on generic kernels only");
    return mdcg::kernel_problem(*package);
}

}  // namespace

void register_kernels(py::module_& m) {
    // an embedded interpreter may not know its file
    const py::object executable = py::module_::import("sys").attr("executable");
    if (py::isinstance<py::str>(executable)) mdcg::set_python(executable.cast<std::string>());

    py::class_<StopFlag>(m, "StopFlag")
        .def(py::init<>())
        .def("set", [](StopFlag& self) { self.stop = true; })
        .def("is_set", [](const StopFlag& self) { return self.stop.load(); });
    m.def("run_process", &run_process, py::arg("command"), py::arg("seconds") = 0,
          py::arg("stop") = py::none());
    m.def(
        "set_notice",
        [](const py::function& tell) {
            listener() = tell;
            mdcg::set_notice(&tell_listener);
        },
        py::arg("tell"));
    py::class_<mdcg::FileLock>(m, "FileLock")
        .def(py::init(&lock), py::arg("path"), py::arg("stop") = py::none())
        .def_property_readonly("held", &mdcg::FileLock::held)
        .def("release", &mdcg::FileLock::release);
    m.def("host_target", &mdcg::host_target, py::arg("level"));
    m.def("host_name", &mdcg::host_name);
    m.def("kernel_cache_root", &mdcg::kernel_cache_root);
    m.def("kernel_problem", &kernel_problem, py::arg("path"));
    m.def("kernel_key", &mdcg::kernel_key, py::arg("problem"), py::arg("precision") = "");
    m.def("kernel_generator", &mdcg::kernel_generator);
    m.def("cuda_kernel_sources", &cuda_kernel_sources, py::arg("path"), py::arg("target"),
          py::arg("precision"), py::arg("passes"));

    using mdcg::KernelCache;
    const py::call_guard<py::gil_scoped_release> released;
    py::class_<mdcg::CachedKernel, std::shared_ptr<mdcg::CachedKernel>>(m, "CachedKernel")
        .def_readonly("folder", &mdcg::CachedKernel::folder)
        .def_property_readonly("path",
                               [](const mdcg::CachedKernel& self) { return self.file.path(); })
        .def_property_readonly(
            "binary", [](const mdcg::CachedKernel& self) { return py::bytes(self.binary); })
        .def("load", &mdcg::CachedKernel::load, released);
    py::class_<KernelCache>(m, "KernelCache")
        .def(py::init<std::string, std::string>(), py::arg("target"), py::arg("binary"))
        .def("find", &KernelCache::find, released)
        .def_static("discard", &KernelCache::discard)
        .def("writable_folder", &KernelCache::writable_folder)
        .def("lock_file", &KernelCache::lock_file)
        .def_static("warning", &KernelCache::warning);
}
