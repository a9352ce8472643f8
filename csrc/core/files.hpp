// Files: descriptors that close themselves, contents, and files without a name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace mdcg {

// Longest file that is read whole; packages and kernel files are far shorter.
constexpr std::uint64_t MAX_FILE_BYTES = std::uint64_t(1) << 32;

// An open file that closes itself. It takes a descriptor from a call of the system. Numbers 0 to 2
// (input, output and errors), which are free where a host has closed them, are replaced by higher
// ones: printed text and the streams of child processes must not go to the file.
class Descriptor {
public:
    explicit Descriptor(int number);  // -1: none; errno stays
    ~Descriptor();
    Descriptor(Descriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
    Descriptor& operator=(Descriptor&&) = delete;
    int number() const { return number_; }

private:
    int number_;
};

// Writes data to an open file; a descriptor of -1 fails, too. After a failure, errno tells why.
bool write_whole(int descriptor, const void* data, std::size_t bytes);

// A file without a name that holds data, in memory where the system has such files and `in_memory`
// is set, else in the folder of temporary files. Throws std::runtime_error.
Descriptor unnamed_file(const void* data, std::size_t bytes, bool in_memory);

// Appends `bytes` of a file from `begin` on, or fewer where it ends before. Throws
// std::runtime_error with the reason alone.
void append_part(int descriptor, std::uint64_t begin, std::uint64_t bytes, std::string& content);
std::string read_part(int descriptor, std::uint64_t begin, std::uint64_t bytes);

// A whole file, also one that does not know its size, such as those in /proc. Throws
// std::runtime_error.
std::string read_file(const std::string& path);

}  // namespace mdcg
