#include "core/kernel_cache.hpp"

#include <fcntl.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <system_error>
#include <thread>

#include "core/sha256.hpp"

namespace mdcg {

namespace fs = std::filesystem;

std::string variable(const char* name) {
    const char* text = std::getenv(name);
    return text != nullptr ? text : "";
}

namespace {

// "~" and "~user" at the start, as a shell has it; unknown ones stay.
std::string expand_user(const std::string& path) {
    if (path.empty() || path[0] != '~') return path;
    const std::size_t slash = std::min(path.find('/'), path.size());
    std::string home = slash == 1 ? variable("HOME") : "";
    if (home.empty()) {
        const passwd* entry =
            slash == 1 ? getpwuid(getuid()) : getpwnam(path.substr(1, slash - 1).c_str());
        if (entry == nullptr || entry->pw_dir == nullptr) return path;
        home = entry->pw_dir;
    }
    return home + path.substr(slash);
}

fs::path version_folder() { return fs::path(kernel_cache_root()) / MDCG_VERSION; }

std::string unique_name() {
    static std::atomic<unsigned> count{0};
    std::random_device random;
    Sha256 digest;
    for (const auto part :
         {static_cast<unsigned long>(getpid()), static_cast<unsigned long>(count++),
          static_cast<unsigned long>(random()), static_cast<unsigned long>(random())})
        digest.update(std::to_string(part) + " ");
    return digest.hex().substr(0, 32);
}

// Folder of this process, removed when it ends. A forked child makes its own.
class PrivateFolder {
public:
    static PrivateFolder& instance() {
        static PrivateFolder folder;
        return folder;
    }
    ~PrivateFolder() {
        std::error_code ignored;
        if (owner_ == getpid()) fs::remove_all(path_, ignored);
    }
    std::string get(bool make) {
        const std::lock_guard<std::mutex> guard(mutex_);
        if (owner_ == getpid() || !make) return owner_ == getpid() ? path_ : "";
        const std::string folder = variable("TMPDIR");
        std::string path = (folder.empty() ? "/tmp" : folder) + "/mdcg-XXXXXX";
        if (mkdtemp(path.data()) == nullptr)
            throw KernelError("neither the kernel cache " + version_folder().string() + " nor " +
                              (folder.empty() ? "/tmp" : folder) + " can be written (" +
                              std::strerror(errno) + "): set MDCG_CACHE_DIR to a writable folder");
        path_ = path;
        owner_ = getpid();
        return path_;
    }

private:
    std::mutex mutex_;
    std::string path_;
    pid_t owner_ = 0;
};

bool is_whole(const fs::path& folder, const std::string& name) {
    try {
        const std::string binary = read_file((folder / name).string());
        return read_file((folder / "kernel.sha256").string()) ==
               sha256_hex(binary.data(), binary.size());
    } catch (const std::runtime_error&) {
        return false;
    }
}

// Brings files to the disk, so that a crash cannot leave the name without the content.
void flush(const fs::path& folder) {
    for (const auto& entry : fs::directory_iterator(folder)) {
        const int file = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
        if (file < 0) continue;
        fsync(file);
        close(file);
    }
}

// Can locks be made below `root`?
bool writable(const fs::path& root) {
    std::error_code error;
    fs::create_directories(root / "locks", error);
    const std::string probe = (root / "locks" / ("." + unique_name())).string();
    const int file = open(probe.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    if (file < 0) return false;
    close(file);
    unlink(probe.c_str());
    return true;
}

}  // namespace

std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : -1;
    std::string content(size > 0 ? static_cast<std::size_t>(size) : 0, '\0');
    if (size >= 0) file.seekg(0).read(content.data(), size);
    if (size < 0 || !file) throw std::runtime_error("cannot read " + path);
    return content;
}

void write_file(const std::string& path, const std::string& content) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
    if (!file.flush())
        throw KernelError("cannot write " + path + ": is the disk full? Set MDCG_CACHE_DIR to a " +
                          "folder with space");
}

std::string kernel_cache_root() {
    const std::string named = variable("MDCG_CACHE_DIR");
    if (!named.empty()) return expand_user(named);
    const std::string xdg = variable("XDG_CACHE_HOME");
    if (!xdg.empty()) return xdg + "/mdcg";
    const std::string home = expand_user("~");
    return (home != "~" ? home + "/.cache" : "/nonexistent") + "/mdcg";
}

bool jit_disabled() {
    std::string text = variable("MDCG_DISABLE_JIT");
    const char* space = " \t\n\r\f\v";
    text.erase(0, std::min(text.find_first_not_of(space), text.size()));
    text.erase(text.find_last_not_of(space) + 1);
    for (char& c : text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    return !(text.empty() || text == "0" || text == "false" || text == "no" || text == "off");
}

KernelCache::KernelCache(std::string target, std::string binary)
    : target_(std::move(target)), binary_(std::move(binary)) {}

std::string KernelCache::key(const std::vector<std::string>& texts) {
    Sha256 digest;
    for (const std::string& text : texts) digest.update(text).update("\0", 1);
    return digest.hex().substr(0, 32);
}

std::string KernelCache::find(const std::string& key) const {
    const std::string own = PrivateFolder::instance().get(false);
    for (const fs::path& root : {version_folder(), fs::path(own)})
        if (!root.empty() && is_whole(root / target_ / key, binary_))
            return (root / target_ / key).string();
    return "";
}

void KernelCache::discard(const std::string& key) const {
    std::error_code ignored;
    const std::string folder = find(key);
    if (!folder.empty()) fs::remove_all(folder, ignored);
}

bool KernelCache::is_private() { return !PrivateFolder::instance().get(false).empty(); }

KernelCache::Lock::~Lock() {
    if (descriptor_ < 0) return;
    flock(descriptor_, LOCK_UN);  // a child that was forked meanwhile has the file open, too
    close(descriptor_);
}

std::unique_ptr<KernelCache::Lock> KernelCache::lock(const std::string& key, bool wait) const {
    fs::path root = version_folder();
    if (!writable(root)) {
        root = PrivateFolder::instance().get(true);
        std::error_code error;
        fs::create_directories(root / "locks", error);
    }
    const std::string path = (root / "locks" / (target_ + "-" + key + ".lock")).string();
    for (;;) {
        int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (file < 0 && errno == EACCES)  // another user's
            file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (file < 0)
            throw KernelError("cannot open " + path + ": " + std::strerror(errno) +
                              ": set MDCG_CACHE_DIR to a writable folder");
        if (flock(file, LOCK_EX | LOCK_NB) == 0) {
            // the holder before may have removed the file: then others lock another one
            struct stat held, named;
            if (fstat(file, &held) == 0 && stat(path.c_str(), &named) == 0 &&
                held.st_ino == named.st_ino && held.st_dev == named.st_dev)
                return std::make_unique<Lock>(root.string(), file);
            close(file);
            continue;
        }
        const int why = errno;
        close(file);
        if (why != EWOULDBLOCK && why != EINTR) return std::make_unique<Lock>(root.string(), -1);
        if (!wait) return nullptr;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
}

std::string KernelCache::make(const Lock& lock, const std::string& key,
                              const std::function<void(const std::string&)>& build) const {
    const fs::path temporary = fs::path(lock.root()) / "tmp" / unique_name();
    struct Remover {
        const fs::path& path;
        ~Remover() {
            std::error_code ignored;
            fs::remove_all(path, ignored);
        }
    } remover{temporary};
    const fs::path final = fs::path(lock.root()) / target_ / key;
    try {
        fs::create_directories(temporary);
        build(temporary.string());
        const std::string binary = read_file((temporary / binary_).string());
        write_file((temporary / "kernel.sha256").string(),
                   sha256_hex(binary.data(), binary.size()));
        flush(temporary);
        fs::create_directories(final.parent_path());
        std::error_code ignored;
        fs::remove_all(final, ignored);  // what find() did not accept
        std::error_code error;
        fs::rename(temporary, final, error);
        // a process that could not see our lock (another host) was faster
        if (error && !is_whole(final, binary_)) throw fs::filesystem_error("rename", final, error);
    } catch (const fs::filesystem_error& error) {
        throw KernelError("the kernel cache " + lock.root() + " cannot be written (" +
                          error.code().message() + "): set MDCG_CACHE_DIR to a writable folder");
    }
    return final.string();
}

}  // namespace mdcg
