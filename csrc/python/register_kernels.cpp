// Python bindings of the cache of kernels, of compilers, and of the CUDA driver.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "core/cpu.hpp"
#include "core/device.hpp"
#include "core/interrupt.hpp"
#include "core/kernel_cache.hpp"
#include "core/notice.hpp"
#include "core/process.hpp"
#include "engine/cuda/devices.hpp"
#include "engine/cuda/kernels.hpp"
#include "engine/cuda/model.hpp"
#include "engine/error.hpp"
#include "engine/kernels/kernel_file.hpp"
#include "engine/kernels/kernel_finder.hpp"
#include "engine/program.hpp"
#include "register_engine.hpp"

namespace py = pybind11;

namespace {

// Once set, ends the waits of the Python threads that have this flag: for compilers, and for other
// processes.
struct StopFlag {
    std::atomic<bool> stop{false};
};

// KernelError becomes KernelCompileError.
void register_kernel_error() {
    py::register_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) std::rethrow_exception(pointer);
        } catch (const mdcg::KernelError& error) {
            const py::object type = py::module_::import("mdcg.errors").attr("KernelCompileError");
            PyErr_SetString(type.ptr(), error.what());
        }
    });
}

py::tuple run_compiler(const std::vector<std::string>& command) {
    mdcg::ProcessOptions options;
    options.seconds = mdcg::compile_timeout();
    mdcg::ProcessResult done{};
    try {
        const py::gil_scoped_release release;
        done = mdcg::run_process(command, options);
    } catch (const std::runtime_error& error) {
        const bool late = std::string(error.what()).find("did not end") != std::string::npos;
        throw mdcg::KernelError("the C++ compiler " + command.at(0) + " " + error.what() +
                                ": set MDCG_CXX to choose another one" +
                                (late ? ", or MDCG_COMPILE_TIMEOUT to more seconds" : ""));
    }
    return py::make_tuple(done.status, py::bytes(done.messages).attr("decode")("utf-8", "replace"));
}

// Calls `build` with the path of an empty folder.
mdcg::CachedKernelPtr make_kernel(const mdcg::KernelCache& self, const std::string& key,
                                  const py::function& build, const StopFlag* flag) {
    const py::object path = py::module_::import("pathlib").attr("Path");
    const py::gil_scoped_release release;
    std::optional<mdcg::HelperScope> scope;
    if (flag != nullptr) scope.emplace(flag->stop);
    return self.make(key, [&](const std::string& folder) {
        const py::gil_scoped_acquire gil;
        try {
            build(path(folder));
        } catch (py::error_already_set& error) {
            const bool system_error =
                error.matches(PyExc_OSError) && !error.value().attr("errno").is_none();
            if (!system_error) throw;
            throw std::system_error(error.value().attr("errno").cast<int>(),
                                    std::generic_category());
        }
    });
}

// The Python function that receives messages to users.
py::object& listener() {
    static py::object* const function = new py::object();  // never destroyed
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
                             const std::string& passes) {
    const int capability = mdcg::parse_device_target(target);
    if (capability == 0)
        mdcg::bad_argument("target is '" + target + "', expected one such as 'sm_90' or 'gfx90a'");
    std::vector<mdcg::CudaKernelSource> texts;
    {
        py::gil_scoped_release release;
        const auto package = mdcg::Package::open(path);
        texts = mdcg::cuda_kernel_sources(package, capability, passes);
    }
    py::list out;
    for (const mdcg::CudaKernelSource& text : texts)
        out.append(py::make_tuple(text.key, text.name, text.text));
    return out;
}

// The kernel problem of a package, after all checks of its layers.
std::string kernel_problem(const std::string& path) {
    const py::gil_scoped_release release;
    const auto package = mdcg::Package::open(path);
    const std::string refusal = mdcg::validate(package).kernel_refusal;
    if (!refusal.empty())
        throw mdcg::EngineError(mdcg::ErrorKind::unsupported,
                                path + ": " + refusal + ", so it runs on generic kernels only");
    return mdcg::kernel_problem(*package);
}

void register_cuda(py::module_& m) {
    register_error(m, "CudaError", "code", &mdcg::DeviceError::code);
    py::class_<mdcg::DeviceModule>(m, "CudaModule")
        .def(py::init([](int device, const py::bytes& cubin) {
                 const std::string binary = cubin;
                 py::gil_scoped_release release;
                 return std::make_unique<mdcg::DeviceModule>(device, binary);
             }),
             py::arg("device"), py::arg("cubin"))
        .def("function", &mdcg::DeviceModule::function, py::arg("name"), py::arg("shared_bytes"))
        .def("resources", &mdcg::DeviceModule::resources, py::arg("function"),
             "Return registers and bytes of local memory per thread, and static shared memory.")
        .def("launch", &mdcg::DeviceModule::launch, py::arg("function"), py::arg("blocks"),
             py::arg("threads"), py::arg("shared_bytes"), py::arg("stream"), py::arg("arguments"),
             py::arg("early") = false, py::call_guard<py::gil_scoped_release>());

    m.def(
        "cuda_compute_capability", [](int device) { return mdcg::compute_capability(device); },
        py::arg("device"));
    m.def("device_name", &mdcg::device_name, py::arg("device"));
    m.def(
        "cuda_driver_version", [] { return mdcg::driver_version(mdcg::Vendor::nvidia); },
        "Return the version of CUDA that the driver is made for, as 1000 * major + 10 * minor.");
    m.def(
        "cuda_available_version",
        [] { return mdcg::available_driver_version(mdcg::Vendor::nvidia); },
        "Return the same without starting the driver; 0 where there is none.");
    m.def(
        "hip_available_version", [] { return mdcg::available_driver_version(mdcg::Vendor::amd); },
        "Return the same of AMD's driver and HIP, which this call starts.");
    m.def("parse_device", &mdcg::parse_device, py::arg("name"),
          "Return the number of a device such as \"cuda:1\" or \"hip\"; -1 for \"cpu\".");
    m.def(
        "device_target",
        [](int device) { return mdcg::target_name(mdcg::compute_capability(device)); },
        py::arg("device"), "Return a device's architecture, \"sm_90\" or \"gfx90a\".");
}

}  // namespace

void register_kernels(py::module_& m) {
    // an embedded interpreter may have no executable
    const py::object executable = py::module_::import("sys").attr("executable");
    if (py::isinstance<py::str>(executable)) mdcg::set_python(executable.cast<std::string>());

    py::class_<StopFlag>(m, "StopFlag").def(py::init<>()).def("set", [](StopFlag& self) {
        self.stop = true;
    });
    register_kernel_error();
    register_cuda(m);
    m.def("run_compiler", &run_compiler, py::arg("command"));
    m.def("jit_disabled", &mdcg::jit_disabled);
    m.def(
        "set_notice",
        [](const py::function& tell) {
            listener() = tell;
            mdcg::set_notice(&tell_listener);
        },
        py::arg("tell"));
    m.def("host_target", &mdcg::host_target, py::arg("level"));
    m.def("kernel_cache_root", &mdcg::kernel_cache_root);
    m.def("kernel_problem", &kernel_problem, py::arg("path"));
    m.def("kernel_key", &mdcg::kernel_key, py::arg("problem"));
    m.def("kernel_generator", &mdcg::kernel_generator);
    m.def("kernel_source", &mdcg::kernel_source, py::arg("file"));
    m.def("cuda_kernel_sources", &cuda_kernel_sources, py::arg("path"), py::arg("target"),
          py::arg("passes"));

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
        .def_static("key",
                    [](const py::args& texts) {
                        return KernelCache::key(texts.cast<std::vector<std::string>>());
                    })
        .def("find", &KernelCache::find, released, py::arg("key"))
        .def("discard", &KernelCache::discard, released, py::arg("key"))
        .def("make", &make_kernel, py::arg("key"), py::arg("build"), py::arg("stop") = py::none())
        .def_static("warning", &KernelCache::warning)
        .def_static("why_not_kept", &KernelCache::why_not_kept);
}
