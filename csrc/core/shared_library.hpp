// A shared library opened at run time, and the C symbols in it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace mdcg {

// Whether the content of an ELF file ends before its last part: the loader would touch what lies
// beyond the end, and that ends the process.
bool is_cut_short(const void* data, std::size_t bytes);

class SharedLibrary {
public:
    // Throws std::runtime_error with the loader's message.
    explicit SharedLibrary(const std::string& path);
    ~SharedLibrary();
    SharedLibrary(const SharedLibrary&) = delete;
    SharedLibrary& operator=(const SharedLibrary&) = delete;

    // A library that is never unloaded, since libraries of others may leave threads and handlers.
    static SharedLibrary lasting(const std::string& path);

    // Loads a library that lies in memory, without leaving a file behind; `name` is for messages.
    // Throws std::runtime_error, also where it is cut short.
    static std::shared_ptr<SharedLibrary> from_memory(const void* data, std::size_t bytes,
                                                      const std::string& name);

    // Loads the very file that was read: `content` is what it holds. `name` is for messages.
    static std::shared_ptr<SharedLibrary> from_file(int descriptor, const std::string& content,
                                                    const std::string& name);

    // Address of a symbol; throws std::runtime_error when the library has none of that name.
    void* symbol(const std::string& name) const;
    // The same, or null where there is none.
    void* find(const std::string& name) const noexcept;

private:
    SharedLibrary(const std::string& path, const std::string& name, int flags);

    std::string path_;
    void* handle_;
};

}  // namespace mdcg
