#include "core/kernel_cache.hpp"

#include <fcntl.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <vector>

#include "core/interrupt.hpp"
#include "core/notice.hpp"
#include "core/sha256.hpp"

namespace mdcg {

namespace fs = std::filesystem;

std::string variable(const char* name) {
    const char* text = std::getenv(name);
    return text != nullptr ? text : "";
}

namespace {

std::string network_name() {
    char name[256] = {};
    gethostname(name, sizeof(name) - 1);
    return name;
}

}  // namespace

std::string host_name() {
    const std::string name = network_name();
    return sha256_hex(name.data(), name.size()).substr(0, 8);
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
constexpr std::uint64_t MAX_LOCK_TEXT = 4096;

// Who holds a lock, as its file says: "process 1234 on node7".
class Holder {
public:
    static Holder present() { return Holder(getpid(), network_name()); }
    static Holder read(int file) {
        const std::vector<std::string> words = split_at(read_part(file, 0, MAX_LOCK_TEXT), ' ');
        if (words.size() != 4 || words[0] != "process") return {};
        return Holder(std::atoi(words[1].c_str()), printable(words[3]));
    }
    Holder() = default;

    bool is_this_process() const { return process_ == getpid() && host_ == network_name(); }
    std::string text() const {
        if (process_ <= 0) return "another process";
        return "process " + std::to_string(process_) + " on " + host_;
    }
    // A process of this host that a signal has stopped, such as Ctrl-Z.
    bool is_stopped() const {
        if (process_ <= 0 || host_ != network_name()) return false;
        try {
            const std::string stat = read_file("/proc/" + std::to_string(process_) + "/stat");
            const std::size_t name_end = stat.rfind(')');
            return name_end + 2 < stat.size() && stat[name_end + 2] == 'T';
        } catch (const std::runtime_error&) {
            return false;
        }
    }

private:
    Holder(int process, std::string host) : process_(process), host_(std::move(host)) {}
    int process_ = 0;
    std::string host_;
};

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
        folder_.emplace(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        try_lock(folder_->number());
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
    std::optional<Descriptor> folder_;
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

int compile_timeout() {
    const std::string text = variable("MDCG_COMPILE_TIMEOUT");
    int seconds = 0;
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, seconds);
    if (text.empty()) return 600;
    if (read.ec != std::errc() || read.ptr != end || seconds <= 0)
        throw KernelError("MDCG_COMPILE_TIMEOUT is '" + text +
                          "', expected a whole number of seconds above 0: correct it or unset it");
    return seconds;
}

FileLock::FileLock(const std::string& path) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    const auto limit = std::chrono::seconds(compile_timeout());
    // Kernels take up to a minute, so waiting that long is not reported. A stopped process does not
    // make any.
    const auto early = std::min<Clock::duration>(std::chrono::seconds(10), limit / 2);
    const auto late = std::min<Clock::duration>(std::chrono::seconds(60), limit / 2);
    Holder holder;
    bool waited = false, told = false;
    for (;; waited = true) {
        file_.emplace(
            open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
        if (file_->number() < 0)
            throw KernelError("cannot open " + path + ": " + std::strerror(errno) +
                              ": set MDCG_CACHE_DIR to a writable folder");
        if (try_lock(file_->number())) break;
        const int why = errno;
        const auto passed = Clock::now() - start;
        if (passed > early) holder = Holder::read(file_->number());
        file_.reset();
        if (why != EWOULDBLOCK && why != EINTR) return;
        const bool stopped = passed > early && !told && holder.is_stopped();
        if ((passed > late || stopped) && !told && !holder.is_this_process()) {
            notice("mdcg waits for " + holder.text() + ", which is making the same kernels" +
                   (stopped ? " but is stopped" : "") + "; after " + std::to_string(limit.count()) +
                   " s (MDCG_COMPILE_TIMEOUT) mdcg makes them in this process");
            told = true;
        }
        if (passed > limit) {
            notice(holder.text() + " has not made the kernels in " + std::to_string(limit.count()) +
                   " s, so mdcg makes them in this process");
            return;
        }
        poll_interrupt();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    const std::string text = waited ? read_part(file_->number(), 0, MAX_LOCK_TEXT) : "";
    if (text.compare(0, std::strlen(FAILED), FAILED) == 0)
        failure_ = text.substr(std::strlen(FAILED));
    else  // a failure stays for all that wait
        write(Holder::present().text());
}

void FileLock::release() {
    if (file_.has_value())
        flock(file_->number(),
              LOCK_UN);  // a child that was forked meanwhile has the file open, too
    file_.reset();
}

void FileLock::write(const std::string& text) const {
    if (!file_.has_value() || ftruncate(file_->number(), 0) != 0) return;
    (void)!pwrite(file_->number(), text.data(), text.size(), 0);
}

void FileLock::fail(const std::string& sentence) const { write(FAILED + sentence); }

}  // namespace mdcg
