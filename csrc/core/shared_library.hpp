// A shared library opened at run time, and the C symbols in it.
#pragma once

#include <string>

namespace mdcg {

class SharedLibrary {
public:
    // Throws std::runtime_error with the loader's own words.
    explicit SharedLibrary(const std::string& path);
    ~SharedLibrary();
    SharedLibrary(const SharedLibrary&) = delete;
    SharedLibrary& operator=(const SharedLibrary&) = delete;

    // Address of a symbol; throws std::runtime_error when the library has none of that name.
    void* symbol(const std::string& name) const;

private:
    std::string path_;
    void* handle_;
};

}  // namespace mdcg
