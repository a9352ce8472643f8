// Files whose code is executed, and the folders that hold them. They are opened without following
// links, and refused if a user other than this one and root could have written them.
#pragma once

#include <stdexcept>
#include <string>

#include "core/files.hpp"

namespace mdcg {

// Another user could have written a file: the message names it and says what to do.
struct UntrustedError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// An open file or folder that belongs to this user or to root, and that no other user can write.
// Opening one throws std::runtime_error if it is missing or of another kind, and UntrustedError if
// another user could have written it.
class TrustedFile {
public:
    // The root folder, which the user names. It may be a link, but not a link of another user.
    explicit TrustedFile(const std::string& path);
    // A folder or file in this folder.
    TrustedFile folder(const std::string& name) const;
    TrustedFile file(const std::string& name) const;
    // A folder in this folder, made for this user alone if it is missing.
    TrustedFile made_folder(const std::string& name) const;

    bool is_writable_folder() const;
    std::string read() const;
    int descriptor() const { return descriptor_.number(); }
    const std::string& path() const { return path_; }

private:
    TrustedFile(int folder, const std::string& name, std::string path, int flags);

    std::string path_;
    Descriptor descriptor_;
};

// Makes a folder, and missing folders above it, for this user alone. Failures are not reported:
// they show when the folder is opened.
void make_private_folder(const std::string& path);

}  // namespace mdcg
