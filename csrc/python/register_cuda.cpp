#include "register_cuda.hpp"

#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda_driver.hpp"
#include "core/cuda_kernels.hpp"
#include "core/nvrtc.hpp"
#include "engine/cuda/bundle.hpp"
#include "engine/cuda/model.hpp"
#include "engine/error.hpp"

namespace py = pybind11;

namespace {

// CudaError(RuntimeError) with the attribute ``code``, the driver's number.
void register_error(py::module_& m) {
    static PyObject* const type =
        PyErr_NewException("mdcg._core.CudaError", PyExc_RuntimeError, nullptr);
    m.attr("CudaError") = py::reinterpret_borrow<py::object>(type);
    py::register_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) std::rethrow_exception(pointer);
        } catch (const mdcg::CudaError& error) {
            const py::object value = py::reinterpret_borrow<py::object>(type)(error.what());
            value.attr("code") = error.code();
            PyErr_SetObject(type, value.ptr());
        }
    });
}

}  // namespace

namespace {

using Source = std::pair<std::string, std::vector<std::string>>;  // text, options

py::list cuda_texts(const std::string& path, const std::string& target) {
    const int capability = mdcg::parse_cuda_target(target);
    if (capability == 0)
        throw mdcg::EngineError(mdcg::ErrorKind::argument,
                                "target is '" + target + "', expected one such as 'sm_90'");
    std::vector<mdcg::CudaText> texts;
    {
        py::gil_scoped_release release;
        texts = mdcg::cuda_texts(*mdcg::Package::open(path), capability);
    }
    py::list out;
    for (const mdcg::CudaText& text : texts)
        out.append(py::make_tuple(text.key, text.name, text.source.text, text.source.options));
    return out;
}

py::list build_cuda_kernels(const std::vector<Source>& sources, const std::string& target) {
    std::vector<mdcg::CudaSource> texts;
    for (const auto& [text, options] : sources) texts.push_back({text, options});
    std::vector<mdcg::CudaBinary> built;
    {
        py::gil_scoped_release release;
        built = mdcg::load_cuda_kernels(texts, target);
    }
    py::list out;
    for (const mdcg::CudaBinary& each : built)
        out.append(py::make_tuple(py::bytes(each.cubin), each.error, each.compiled, each.seconds));
    return out;
}

}  // namespace

void register_cuda(py::module_& m) {
    register_error(m);
    py::class_<mdcg::Nvrtc>(m, "Nvrtc")
        .def(py::init<const std::string&>(), py::arg("path"))
        .def_property_readonly("version",
                               [](const mdcg::Nvrtc& self) {
                                   return py::make_tuple(self.version_major(),
                                                         self.version_minor());
                               })
        .def_property_readonly("architectures", &mdcg::Nvrtc::architectures)
        .def(
            "compile",
            [](const mdcg::Nvrtc& self, const std::string& source, const std::string& name,
               const std::vector<std::string>& options) {
                mdcg::NvrtcResult result;
                {
                    py::gil_scoped_release release;
                    result = self.compile(source, name, options);
                }
                return py::make_tuple(result.ok, py::bytes(result.cubin), result.log);
            },
            py::arg("source"), py::arg("name"), py::arg("options"));

    py::class_<mdcg::CudaModule>(m, "CudaModule")
        .def(py::init([](int device, const py::bytes& cubin) {
                 const std::string binary = cubin;
                 py::gil_scoped_release release;
                 return std::make_unique<mdcg::CudaModule>(device, binary);
             }),
             py::arg("device"), py::arg("cubin"))
        .def("function", &mdcg::CudaModule::function, py::arg("name"), py::arg("shared_bytes"))
        .def("resources", &mdcg::CudaModule::resources, py::arg("function"))
        .def("launch", &mdcg::CudaModule::launch, py::arg("function"), py::arg("blocks"),
             py::arg("threads"), py::arg("shared_bytes"), py::arg("stream"), py::arg("arguments"),
             py::arg("early") = false, py::call_guard<py::gil_scoped_release>());

    m.def(
        "cuda_compute_capability",
        [](int device) { return mdcg::CudaDriver::get().compute_capability(device); },
        py::arg("device"));
    m.def("cuda_texts", &cuda_texts, py::arg("path"), py::arg("target"));
    m.def("build_cuda_kernels", &build_cuda_kernels, py::arg("sources"), py::arg("target"));
    m.def("cuda_driver_version", [] { return mdcg::CudaDriver::get().version(); });
    m.def("cuda_version_there", &mdcg::CudaDriver::version_there);
}
