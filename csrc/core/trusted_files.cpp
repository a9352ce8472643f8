#include "core/trusted_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace mdcg {

namespace {

constexpr mode_t OTHERS_WRITE = S_IWGRP | S_IWOTH;

void check_owner(const struct stat& about, const std::string& path) {
    if (about.st_uid == 0 || about.st_uid == geteuid()) return;
    throw UntrustedError("kernels in " + path + " are not used, because it belongs to user " +
                         std::to_string(about.st_uid) + ", expected user " +
                         std::to_string(geteuid()) +
                         " or root: set MDCG_CACHE_DIR to a folder of your own");
}

std::runtime_error unreadable(const std::string& path, int why) {
    return std::runtime_error("cannot open " + path + " (" + std::strerror(why) + ")");
}

}  // namespace

// O_NONBLOCK: opening a FIFO would wait for a writer.
TrustedFile::TrustedFile(int folder, const std::string& name, std::string path, int flags)
    : path_(std::move(path)),
      descriptor_(openat(folder, name.c_str(), flags | O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
    struct stat about;
    if (descriptor() < 0 || fstat(descriptor(), &about) != 0) throw unreadable(path_, errno);
    if (!S_ISDIR(about.st_mode) && !S_ISREG(about.st_mode))
        throw std::runtime_error(path_ + " is neither a file nor a folder");
    check_owner(about, path_);
    if (about.st_mode & OTHERS_WRITE)
        throw UntrustedError("kernels in " + path_ +
                             " are not used, because other users can write it: run 'chmod go-w " +
                             path_ +
                             "' if you trust what it holds, or set MDCG_CACHE_DIR to a folder of "
                             "your own");
}

TrustedFile::TrustedFile(const std::string& path) : TrustedFile(AT_FDCWD, path, path, O_DIRECTORY) {
    struct stat link;
    if (lstat(path.c_str(), &link) != 0) throw unreadable(path, errno);
    check_owner(link, path);
}

TrustedFile TrustedFile::folder(const std::string& name) const {
    return {descriptor(), name, path_ + "/" + name, O_DIRECTORY | O_NOFOLLOW};
}

TrustedFile TrustedFile::file(const std::string& name) const {
    return {descriptor(), name, path_ + "/" + name, O_NOFOLLOW};
}

TrustedFile TrustedFile::made_folder(const std::string& name) const {
    mkdirat(descriptor(), name.c_str(), S_IRWXU);
    return folder(name);
}

bool TrustedFile::is_writable_folder() const {
    return faccessat(descriptor(), ".", W_OK | X_OK, AT_EACCESS) == 0;
}

std::string TrustedFile::read() const {
    struct stat about;
    if (fstat(descriptor(), &about) != 0 || !S_ISREG(about.st_mode))
        throw std::runtime_error(path_ + " is not a file");
    const auto bytes = static_cast<std::uint64_t>(about.st_size);
    std::string content = bytes > MAX_FILE_BYTES ? "" : read_part(descriptor(), 0, bytes);
    if (content.size() != bytes) throw std::runtime_error("cannot read " + path_);
    return content;
}

void make_private_folder(const std::string& path) {
    if (mkdir(path.c_str(), S_IRWXU) == 0 || errno != ENOENT) return;
    const std::string above = std::filesystem::path(path).parent_path().string();
    if (above.empty() || above == path) return;
    make_private_folder(above);
    mkdir(path.c_str(), S_IRWXU);
}

}  // namespace mdcg
