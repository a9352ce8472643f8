#include "core/files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace mdcg {

Descriptor::Descriptor(int number) : number_(number) {
    if (number < 0 || number > STDERR_FILENO) return;
    number_ = fcntl(number, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int why = errno;
    close(number);
    errno = why;
}

Descriptor::~Descriptor() {
    if (number_ >= 0) close(number_);
}

bool write_whole(int descriptor, const void* data, std::size_t bytes) {
    const char* from = static_cast<const char*>(data);
    bool good = descriptor >= 0;
    for (std::size_t done = 0; good && done < bytes;) {
        const ssize_t more = write(descriptor, from + done, bytes - done);
        if (more < 0 && errno == EINTR) continue;
        good = more > 0;
        if (good) done += static_cast<std::size_t>(more);
    }
    return good;
}

Descriptor unnamed_file(const void* data, std::size_t bytes, bool in_memory) {
    const char* folder = std::getenv("TMPDIR");
    std::string path = std::string(folder != nullptr && *folder != 0 ? folder : "/tmp");
    path += "/mdcg-XXXXXX";
    const auto create = [&] {
#ifdef MFD_CLOEXEC
        const int number = in_memory ? memfd_create("mdcg", MFD_CLOEXEC) : -1;
        if (number >= 0) return number;
#endif
        const int named = mkostemp(path.data(), O_CLOEXEC);
        if (named >= 0) unlink(path.c_str());
        return named;
    };
    Descriptor file(create());
    if (!write_whole(file.number(), data, bytes))
        throw std::runtime_error("no temporary file can be written in " + path + " (" +
                                 std::strerror(errno) + "): set TMPDIR to a folder with space");
    return file;
}

void append_part(int descriptor, std::uint64_t begin, std::uint64_t bytes, std::string& content) {
    const std::size_t first = content.size();
    content.resize(first + static_cast<std::size_t>(bytes));
    std::size_t have = first;
    while (have < content.size()) {
        const ssize_t more = pread(descriptor, content.data() + have, content.size() - have,
                                   static_cast<off_t>(begin + (have - first)));
        if (more < 0 && errno == EINTR) continue;
        if (more < 0) throw std::runtime_error(std::strerror(errno));
        if (more == 0) break;
        have += static_cast<std::size_t>(more);
    }
    content.resize(have);
}

std::string read_part(int descriptor, std::uint64_t begin, std::uint64_t bytes) {
    std::string content;
    append_part(descriptor, begin, bytes, content);
    return content;
}

std::string read_file(const std::string& path) {
    const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    try {
        if (file.number() < 0) throw std::runtime_error(std::strerror(errno));
        constexpr std::uint64_t BLOCK = 1 << 16;
        std::string content;
        for (std::size_t before = 1; before != content.size();) {
            before = content.size();
            append_part(file.number(), before, BLOCK, content);
        }
        return content;
    } catch (const std::runtime_error& error) {
        throw std::runtime_error("cannot read " + path + " (" + error.what() + ")");
    }
}

}  // namespace mdcg
