// A shared library opened at run time, and the C symbols in it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace mdcg {

class SharedLibrary {
public:
    // Throws std::runtime_error with the loader's own words.
    explicit SharedLibrary(const std::string& path);
    ~SharedLibrary();
    SharedLibrary(const SharedLibrary&) = delete;
    SharedLibrary& operator=(const SharedLibrary&) = delete;

    // One that is never unloaded: those of others may leave threads and handlers behind.
    static SharedLibrary lasting(const std::string& path);

    // Loads a library that lies in memory, without leaving a file behind; `name` is for messages.
    static std::shared_ptr<SharedLibrary> from_memory(const void* data, std::size_t bytes,
                                                      const std::string& name);

    // Address of a symbol; throws std::runtime_error when the library has none of that name.
    void* symbol(const std::string& name) const;
    // The same, or null.
    void* find(const std::string& name) const noexcept;

private:
    SharedLibrary(const std::string& path, const std::string& name, int flags);

    std::string path_;
    void* handle_;
};

}  // namespace mdcg
