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
#include <optional>
#include <set>
#include <system_error>
#include <thread>

#include "core/interrupt.hpp"
#include "core/notice.hpp"
#include "core/sha256.hpp"
#include "core/text.hpp"

namespace mdcg {

namespace fs = std::filesystem;

namespace {

const char* const DIGEST = "kernel.sha256";

std::string network_name() {
    char name[256] = {};
    gethostname(name, sizeof(name) - 1);
    return name;
}

// Part of names of temporary files, by which a process recognizes files of its own host.
std::string host_name() {
    const std::string name = network_name();
    return sha256_hex(name.data(), name.size()).substr(0, 8);
}

// Replaces "~" and "~user" at the start like a shell; unknown users stay.
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

// Returns a path that begins with "/", since compilers take a name that begins with "-" for an
// option. It has no slash at its end.
std::string absolute(const std::string& path) {
    std::error_code error;
    std::string full = fs::absolute(path, error).string();
    if (error) full = path;  // the working folder is gone
    while (full.size() > 1 && full.back() == '/') full.pop_back();
    return full;
}

// The first reason why a root is not used, or not written, by root.
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

bool is_older_than(const fs::path& path, std::chrono::seconds age) {
    std::error_code error;
    const auto changed = fs::last_write_time(path, error);
    return !error && fs::file_time_type::clock::now() - changed > age;
}

// Takes the lock of an open file if no other process or thread holds it.
bool try_lock(int file) { return flock(file, LOCK_EX | LOCK_NB) == 0; }

// Releases the lock even if a forked child still has the file open.
void unlock(int file) { flock(file, LOCK_UN); }

// Whether no process holds the lock of a file. If that is unknown, the lock counts as held.
bool is_free(const fs::path& path) {
    const Descriptor file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (file.number() < 0) return errno == ENOENT;
    if (!try_lock(file.number())) return false;
    unlock(file.number());
    return true;
}

// Begins the text of a lock file whose holder failed; the reason follows.
const char* const FAILED = "failed: ";
constexpr std::uint64_t MAX_LOCK_TEXT = 4096;

// The holder of a lock, as the lock file names it: "process 1234 on node7".
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
    // Whether it is a process of this host that a signal has stopped, as Ctrl-Z does.
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

// The lock of the process that makes a kernel. It ends with the process. The file names the holder,
// or says why the last holder failed.
class FileLock {
public:
    // Waits for the holder, at most compile_timeout(). After that time, or if the file system has
    // no locks, nothing is held. Throws KernelError if the file cannot be opened.
    explicit FileLock(const std::string& path);
    ~FileLock() {
        if (file_.has_value()) unlock(file_->number());
    }
    FileLock(const FileLock&) = delete;
    FileLock& operator=(const FileLock&) = delete;

    bool held() const { return file_.has_value(); }
    // Why the last holder failed while this one waited; empty: it did not fail.
    const std::string& failure() const { return failure_; }
    // Leaves a sentence for those that wait.
    void fail(const std::string& sentence) const { write(FAILED + sentence); }

private:
    void write(const std::string& text) const {
        if (!held() || ftruncate(file_->number(), 0) != 0) return;
        (void)!pwrite(file_->number(), text.data(), text.size(), 0);
    }
    std::string failure_;
    std::optional<Descriptor> file_;
};

FileLock::FileLock(const std::string& path) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    const auto limit = std::chrono::seconds(compile_timeout());
    // Kernels take up to a minute, so only longer waits are reported, or waits for a process that
    // is stopped.
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
        failure_ = text.substr(std::strlen(FAILED));  // it stays for all that wait
    else
        write(Holder::present().text());
}

// A temporary folder of this process, which replaces a cache that cannot be used. It is removed
// when the process ends; a forked child makes its own. The process holds a lock on it, so that
// others see which of these folders killed processes have left.
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
                is_older_than(entry.path(), std::chrono::minutes(1)) && try_lock(file.number()))
                fs::remove_all(entry.path(), ignored);
        }
    }

    std::mutex mutex_;
    std::string path_;
    std::optional<Descriptor> folder_;
    pid_t owner_ = 0;
};

// Makes <root>/<version> with the folders "locks", "tmp" and `target`, and returns it. Throws
// std::runtime_error.
std::string prepare(const std::string& root, const std::string& target) {
    make_private_folder(root);
    const TrustedFile version = TrustedFile(root).made_folder(MDCG_VERSION);
    for (const std::string& name : {std::string("locks"), std::string("tmp"), target})
        if (!version.made_folder(name).is_writable_folder())
            throw std::runtime_error("cannot write " + version.path() + "/" + name);
    return version.path();
}

// The same for the current root or, if that cannot be used, for a folder of this process. Throws
// KernelError.
std::string writable_folder(const std::string& target) {
    const std::string root = kernel_cache_root();
    try {
        return prepare(root, target);
    } catch (const UntrustedError& error) {
        warn(error.what());
    } catch (const std::runtime_error& error) {
        warn("the kernel cache " + root + " cannot be written (" + error.what() +
             "), so that every process compiles its kernels again: set MDCG_CACHE_DIR to a "
             "writable folder");
    }
    try {
        return prepare(PrivateFolder::instance().get(true), target);
    } catch (const std::runtime_error& error) {
        throw KernelError(error.what());
    }
}

// Removes temporary folders of killed processes from <root>/<version>. The locks that other
// processes of this host hold show which folders are in use. Locks of other hosts may not be
// visible here, so their folders stay for a day. `own` is the lock that this process holds.
void remove_leftovers(const fs::path& version, const std::string& own) {
    std::error_code ignored;
    const fs::directory_iterator end;
    for (fs::directory_iterator entry(version / "tmp", ignored); entry != end;
         entry.increment(ignored)) {
        if (!fs::is_directory(entry->symlink_status(ignored))) continue;
        // <lock>.<host>.<unique>
        const fs::path folder = entry->path().filename();
        const std::string lock = folder.stem().stem().string();
        const bool of_this_host = folder.stem().extension() == "." + host_name();
        if (is_older_than(entry->path(), std::chrono::hours(24)) ||
            (of_this_host && (lock == own || is_free(version / "locks" / (lock + ".lock")))))
            fs::remove_all(entry->path(), ignored);
    }
}

// An empty folder that is removed with what is in it, unless it was moved.
class TemporaryFolder {
public:
    explicit TemporaryFolder(std::string path) : path_(std::move(path)) {
        path_ += ".XXXXXX";
        if (mkdtemp(path_.data()) == nullptr)
            throw std::system_error(errno, std::generic_category());
    }
    ~TemporaryFolder() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    const std::string& path() const { return path_; }

private:
    std::string path_;
};

// Lets only this user read and write the files of a folder, and puts them on the disk: after a
// crash, their names are not there without their contents. Throws std::system_error.
void seal(const std::string& folder) {
    for (const auto& entry : fs::directory_iterator(folder)) {
        const Descriptor file(open(entry.path().c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
        if (file.number() < 0 || fchmod(file.number(), S_IRUSR | S_IWUSR) != 0 ||
            fsync(file.number()) != 0)
            throw std::system_error(errno, std::generic_category());
    }
}

void write_digest(const std::string& folder, const std::string& binary) {
    const std::string path = folder + "/" + binary;
    if (access(path.c_str(), R_OK) != 0) throw std::system_error(errno, std::generic_category());
    const std::string content = read_file(path);
    const std::string digest = sha256_hex(content.data(), content.size());
    const Descriptor file(open((folder + "/" + DIGEST).c_str(),
                               O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR));
    if (!write_whole(file.number(), digest.data(), digest.size()))
        throw std::system_error(errno, std::generic_category());
}

// Reads <root>/<version>/<target>/<key>. Throws std::runtime_error where it is missing or damaged.
CachedKernelPtr read_kernel(const std::string& root, const std::string& target,
                            const std::string& key, const std::string& binary) {
    const TrustedFile folder = TrustedFile(root).folder(MDCG_VERSION).folder(target).folder(key);
    TrustedFile file = folder.file(binary);
    std::string content = file.read();
    const bool library = fs::path(binary).extension() == ".so";
    if (folder.file(DIGEST).read() != sha256_hex(content.data(), content.size()) ||
        (library && is_cut_short(content.data(), content.size())))
        throw std::runtime_error(file.path() + " is damaged");
    return std::make_shared<CachedKernel>(
        CachedKernel{std::move(file), folder.path(), std::move(content)});
}

// Kernels that were discarded but cannot be removed, since the cache cannot be written.
struct Discarded {
    std::mutex mutex;
    std::set<std::string> folders;
};
Discarded& discarded() {
    static Discarded all;
    return all;
}

}  // namespace

std::string variable(const char* name) {
    const char* text = std::getenv(name);
    return text != nullptr ? text : "";
}

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

std::shared_ptr<SharedLibrary> CachedKernel::load() const {
    return SharedLibrary::from_file(file.descriptor(), binary, file.path());
}

KernelCache::KernelCache(std::string target, std::string binary)
    : target_(std::move(target)), binary_(std::move(binary)) {}

std::string KernelCache::key(const std::vector<std::string>& texts) {
    Sha256 digest;
    for (const std::string& text : texts) digest.update(text).update("\0", 1);
    return digest.hex().substr(0, 32);
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

void KernelCache::discard(const std::string& key) const {
    const CachedKernelPtr found = find(key);
    if (found == nullptr) return;
    std::error_code failed;
    fs::remove_all(found->folder, failed);
    if (!failed) return;
    const std::lock_guard<std::mutex> guard(discarded().mutex);
    discarded().folders.insert(found->folder);
}

CachedKernelPtr KernelCache::make(const std::string& key, const Build& build) const {
    const std::string version = writable_folder(target_), name = target_ + "-" + key;
    std::error_code ignored;
    const fs::path lock_file = version + "/locks/" + name + ".lock";
    const fs::file_status status = fs::symlink_status(lock_file, ignored);
    if (fs::exists(status) && !fs::is_regular_file(status)) fs::remove_all(lock_file, ignored);
    const FileLock lock(lock_file.string());
    if (lock.held()) remove_leftovers(version, name);
    if (CachedKernelPtr found = find(key)) return found;
    if (!lock.failure().empty()) throw KernelError(lock.failure());
    try {
        const TemporaryFolder folder(version + "/tmp/" + name + "." + host_name());
        build(folder.path());
        write_digest(folder.path(), binary_);
        seal(folder.path());
        const fs::path entry = version + "/" + target_ + "/" + key;
        fs::remove_all(entry, ignored);  // an entry that find() did not accept
        fs::rename(folder.path(), entry,
                   ignored);  // a process of another host may have been faster
    } catch (const std::system_error& error) {
        throw KernelError("the kernel cache " + version + " cannot be written (" +
                          error.code().message() +
                          "): is the disk full? Set MDCG_CACHE_DIR to a folder with space");
    } catch (const KernelError& error) {
        lock.fail(error.what());
        throw;
    }
    if (CachedKernelPtr found = find(key)) return found;
    throw KernelError("the compiler wrote an incomplete " + binary_ + " to " + version +
                      ": is the disk full? Set MDCG_CACHE_DIR to a folder with space");
}

std::string KernelCache::warning() {
    const std::lock_guard<std::mutex> guard(warnings().mutex);
    const auto found = warnings().by_root.find(kernel_cache_root());
    return found != warnings().by_root.end() ? found->second : "";
}

std::string KernelCache::why_not_kept() {
    try {
        // "tmp" is not a target, but its folder is made in any case
        const bool kept = writable_folder("tmp") == kernel_cache_root() + "/" MDCG_VERSION;
        return kept ? "" : warning();
    } catch (const KernelError& error) {  // the folder of temporary files cannot be written, too
        return error.what();
    }
}

}  // namespace mdcg
