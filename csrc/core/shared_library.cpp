#include "core/shared_library.hpp"

#include <dlfcn.h>

#include <stdexcept>

namespace mdcg {

namespace {

std::string loader_message() {
    const char* text = dlerror();
    return text != nullptr ? text : "unknown reason";
}

}  // namespace

SharedLibrary::SharedLibrary(const std::string& path)
    : path_(path), handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr)
        throw std::runtime_error("cannot load " + path + ": " + loader_message());
}

SharedLibrary::~SharedLibrary() { dlclose(handle_); }

void* SharedLibrary::symbol(const std::string& name) const {
    dlerror();
    void* address = dlsym(handle_, name.c_str());
    if (address == nullptr)
        throw std::runtime_error("no symbol " + name + " in " + path_ + ": " + loader_message());
    return address;
}

}  // namespace mdcg
