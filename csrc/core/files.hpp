// Files: descriptors that close themselves, contents, and files without a name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace mdcg {

// Longest file that is read completely; packages and kernel files are far shorter.
constexpr std::uint64_t MAX_FILE_BYTES = std::uint64_t(1) << 32;

// An open file that closes itself. It owns a descriptor that a system call has returned. If a host
// has closed descriptors 0 to 2 (input, output and errors), the system returns these numbers; they
// are replaced by higher ones, so that printed text and streams of child processes do not go to the
// file.
class Descriptor {
public:
    explicit Descriptor(int number);  // -1: none; does not change errno
    ~Descriptor();
    Descriptor(Descriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
    Descriptor& operator=(Descriptor&&) = delete;
    int number() const { return number_; }

private:
    int number_;
};

// Writes data to an open file; a descriptor of -1 fails, too. After a failure, errno tells why.
bool write_whole(int descriptor, const void* data, std::size_t bytes);

// Makes a file without a name that holds data: in memory if `in_memory` is set and the system has
// such files, otherwise in the folder of temporary files. Throws std::runtime_error.
Descriptor unnamed_file(const void* data, std::size_t bytes, bool in_memory);

// Appends `bytes` bytes of a file from `begin` on, or fewer if the file ends before. The text of
// the std::runtime_error that it throws is the reason alone.
void append_part(int descriptor, std::uint64_t begin, std::uint64_t bytes, std::string& content);
std::string read_part(int descriptor, std::uint64_t begin, std::uint64_t bytes);

// Reads a whole file, also one without a known size, such as a file in /proc. Throws
// std::runtime_error.
std::string read_file(const std::string& path);

}  // namespace mdcg
