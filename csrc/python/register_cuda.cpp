// Python binding of the CUDA driver.
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/device.hpp"
#include "register_engine.hpp"

namespace py = pybind11;

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
    m.def("cuda_device_name", &mdcg::device_name, py::arg("device"));
    m.def(
        "cuda_driver_version", [] { return mdcg::driver_version(); },
        "Return the version of CUDA that the driver is made for, as 1000 * major + 10 * minor.");
    m.def("cuda_available_version", &mdcg::available_driver_version,
          "Return the same without starting the driver; 0 where there is none.");
}
