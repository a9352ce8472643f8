// Functions that register bindings, one for each file.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <string>

void register_engine(pybind11::module_& m);
void register_kernels(pybind11::module_& m);

// Registers "mdcg._core." NAME, a RuntimeError of Python, for a C++ class of errors. The Python
// error has a numeric attribute.
template <typename Error, typename Number>
void register_error(pybind11::module_& m, const std::string& name, const char* attribute,
                    Number (Error::*number)() const) {
    static const char* const key = attribute;
    pybind11::dict attributes;
    attributes[key] = 0;
    static PyObject* const type =
        PyErr_NewException(("mdcg._core." + name).c_str(), PyExc_RuntimeError, attributes.ptr());
    static Number (Error::* const get)() const = number;
    m.attr(name.c_str()) = pybind11::reinterpret_borrow<pybind11::object>(type);
    pybind11::register_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) std::rethrow_exception(pointer);
        } catch (const Error& error) {
            const auto value = pybind11::reinterpret_borrow<pybind11::object>(type)(error.what());
            value.attr(key) = static_cast<int>((error.*get)());
            PyErr_SetObject(type, value.ptr());
        }
    });
}
