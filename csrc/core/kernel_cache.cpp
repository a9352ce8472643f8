#include "core/kernel_cache.hpp"

#include <fcntl.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include "core/interrupt.hpp"
#include "core/sha256.hpp"

namespace mdcg {

namespace fs = std::filesystem;

std::string variable(const char* name) {
    const char* text = std::getenv(name);
    return text != nullptr ? text : "";
}

std::string host_name() {
    char name[256] = {};
    gethostname(name, sizeof(name) - 1);
    return sha256_hex(name, std::strlen(name)).substr(0, 8);
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

// The first reason why a root is not used as it should be, by root.
struct Warnings {
    std::mutex mutex;
    std::map<std::string, std::string> by_root;
};
Warnings& warnings() {
    static Warnings all;
    return all;
}
void warn(const std::string& text) {
    const std::lock_guard<std::mutex> guard(warnings().mutex);
    warnings().by_root.emplace(kernel_cache_root(), text);
}

// Without slashes at the end. Compilers take a name that begins with "-" for an option.
std::string absolute(const std::string& path) {
    std::error_code error;
    std::string full = fs::absolute(path, error).string();
    if (error) full = path;  // the working folder is gone
    while (full.size() > 1 && full.back() == '/') full.pop_back();
    return full;
}

bool is_old(const fs::path& path, int seconds) {
    std::error_code error;
    const auto changed = fs::last_write_time(path, error);
    return !error && fs::file_time_type::clock::now() - changed > std::chrono::seconds(seconds);
}

// Takes the lock of an open file, if no other process or thread holds it.
bool try_lock(int file) { return flock(file, LOCK_EX | LOCK_NB) == 0; }

// How a lock file begins in which a holder left why it failed.
const char* const FAILED = "failed: ";

// Folder of this process, removed when it ends. A forked child makes its own. It is locked as long
// as the process lives: the next process that needs one removes those of killed processes.
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
        const std::string folder =
            absolute(variable("TMPDIR").empty() ? "/tmp" : variable("TMPDIR"));
        remove_leftovers(folder);
        std::string path = folder + "/" + prefix() + "XXXXXX";
        if (mkdtemp(path.data()) == nullptr)
            throw KernelError("neither the kernel cache " + kernel_cache_root() + " nor " + folder +
                              " can be written (" + std::strerror(errno) +
                              "): set MDCG_CACHE_DIR to a writable folder");
        path_ = path;
        owner_ = getpid();
        try_lock(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));  // open until the end
        return path_;
    }

private:
    static std::string prefix() { return "mdcg-kernels-" + host_name() + "-"; }

    static void remove_leftovers(const std::string& folder) {
        std::error_code ignored;
        for (const auto& entry : fs::directory_iterator(folder, ignored)) {
            if (entry.path().filename().string().rfind(prefix(), 0) != 0) continue;
            const Descriptor file(
                open(entry.path().c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
            struct stat about;
            if (fstat(file.number(), &about) == 0 && about.st_uid == geteuid() &&
                is_old(entry.path(), 60) && try_lock(file.number()))
                fs::remove_all(entry.path(), ignored);
        }
    }

    std::mutex mutex_;
    std::string path_;
    pid_t owner_ = 0;
};

// Reads <root>/<version>/<target>/<key>. Throws std::runtime_error where it is missing or damaged.
CachedKernelPtr read_kernel(const std::string& root, const std::string& target,
                            const std::string& key, const std::string& binary) {
    const TrustedFile folder = TrustedFile(root).folder(MDCG_VERSION).folder(target).folder(key);
    TrustedFile file = folder.file(binary);
    std::string content = file.read();
    const bool library = fs::path(binary).extension() == ".so";
    if (folder.file("kernel.sha256").read() != sha256_hex(content.data(), content.size()) ||
        (library && is_cut_short(content.data(), content.size())))
        throw std::runtime_error(file.path() + " is damaged");
    return std::make_shared<CachedKernel>(
        CachedKernel{std::move(file), folder.path(), std::move(content)});
}

// Kernels that cannot be removed, since the cache cannot be written.
struct Discarded {
    std::mutex mutex;
    std::set<std::string> folders;
};
Discarded& discarded() {
    static Discarded all;
    return all;
}

}  // namespace

std::string kernel_cache_root() {
    const std::string named = variable("MDCG_CACHE_DIR");
    if (!named.empty()) return absolute(expand_user(named));
    const std::string xdg = variable("XDG_CACHE_HOME");
    if (!xdg.empty()) return absolute(xdg) + "/mdcg";
    const std::string home = expand_user("~");
    return absolute(home != "~" ? home + "/.cache" : "/nonexistent") + "/mdcg";
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

std::shared_ptr<SharedLibrary> CachedKernel::load() const {
    return SharedLibrary::from_file(file.descriptor(), binary, file.path());
}

CachedKernelPtr KernelCache::find(const std::string& key) const {
    for (const std::string& root : {PrivateFolder::instance().get(false), kernel_cache_root()})
        try {
            if (root.empty()) continue;
            CachedKernelPtr found = read_kernel(root, target_, key, binary_);
            const std::lock_guard<std::mutex> guard(discarded().mutex);
            if (discarded().folders.count(found->folder) == 0) return found;
        } catch (const UntrustedError& error) {
            warn(error.what());
        } catch (const std::runtime_error&) {  // missing or damaged: it is made again
        }
    return nullptr;
}

void KernelCache::discard(const std::string& folder) {
    std::error_code failed;
    fs::remove_all(folder, failed);
    if (!failed) return;
    const std::lock_guard<std::mutex> guard(discarded().mutex);
    discarded().folders.insert(folder);
}

std::string KernelCache::warning() {
    const std::lock_guard<std::mutex> guard(warnings().mutex);
    const auto found = warnings().by_root.find(kernel_cache_root());
    return found != warnings().by_root.end() ? found->second : "";
}

std::string KernelCache::writable_folder() const {
    const auto prepare = [&](const std::string& root) {
        make_private_folder(root);
        const TrustedFile version = TrustedFile(root).made_folder(MDCG_VERSION);
        for (const std::string& name : {std::string("locks"), std::string("tmp"), target_})
            if (!version.made_folder(name).is_writable_folder())
                throw std::runtime_error("cannot write " + version.path() + "/" + name);
        return version.path();
    };
    const std::string root = kernel_cache_root();
    try {
        return prepare(root);
    } catch (const UntrustedError& error) {
        warn(error.what());
    } catch (const std::runtime_error& error) {
        warn("the kernel cache " + root + " cannot be written (" + error.what() +
             "), so that every process compiles its kernels again: set MDCG_CACHE_DIR to a "
             "writable folder");
    }
    return prepare(PrivateFolder::instance().get(true));
}

std::string KernelCache::lock_file(const std::string& folder, const std::string& name) const {
    const fs::path path = fs::path(folder) / "locks" / (target_ + "-" + name + ".lock");
    std::error_code ignored;
    const fs::file_status status = fs::symlink_status(path, ignored);
    if (fs::exists(status) && !fs::is_regular_file(status)) fs::remove_all(path, ignored);
    return path.string();
}

FileLock::FileLock(std::string path) : path_(std::move(path)) {
    for (bool waited = false;; waited = true) {
        const int file =
            open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
        if (file < 0)
            throw KernelError("cannot open " + path_ + ": " + std::strerror(errno) +
                              ": set MDCG_CACHE_DIR to a writable folder");
        if (try_lock(file)) {
            descriptor_ = file;
            std::string text = waited ? read_file(path_) : "";
            if (text.compare(0, std::strlen(FAILED), FAILED) == 0)
                failure_ = text.substr(std::strlen(FAILED));
            return;
        }
        const int why = errno;
        close(file);
        if (why != EWOULDBLOCK && why != EINTR) return;
        poll_interrupt();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
}

FileLock::~FileLock() {
    if (descriptor_ < 0) return;
    flock(descriptor_, LOCK_UN);  // a child that was forked meanwhile has the file open, too
    close(descriptor_);
}

void FileLock::fail(const std::string& sentence) const {
    if (descriptor_ < 0 || ftruncate(descriptor_, 0) != 0) return;
    const std::string text = FAILED + sentence;
    (void)!pwrite(descriptor_, text.data(), text.size(), 0);
}

}  // namespace mdcg
