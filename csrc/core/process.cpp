#include "core/process.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "core/files.hpp"
#include "core/interrupt.hpp"
#include "core/text.hpp"

extern char** environ;

namespace mdcg {

namespace fs = std::filesystem;

namespace {

// A running program. It leads a process group: Ctrl-C at a terminal does not reach it, and it can
// be ended with all processes that it has started.
class Process {
public:
    Process(const std::vector<std::string>& command, int messages, const ProcessOptions& options);
    ~Process() {
        if (reaped_) return;
        kill(-leader_, SIGTERM);  // compilers remove their temporary files
        for (int i = 0; 10 * i < grace_.count() && !has_ended(); ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        kill(-leader_, SIGKILL);
        exit_status();
    }
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    // If the host ignores SIGCHLD, a child that has ended is unknown (ECHILD).
    bool has_ended() const {
        siginfo_t info{};
        const int found =
            waitid(P_PID, static_cast<id_t>(leader_), &info, WEXITED | WNOHANG | WNOWAIT);
        return found == 0 ? info.si_pid == leader_ : errno == ECHILD;
    }
    // Waits for the end. Returns -1 if a signal ended it. If the host ignores SIGCHLD, the status
    // is unknown, and 0 is returned.
    int exit_status() {
        int status = 0;
        pid_t found;
        while ((found = waitpid(leader_, &status, 0)) < 0 && errno == EINTR) {
        }
        reaped_ = true;
        if (found < 0) return 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }

private:
    std::chrono::milliseconds grace_;
    pid_t leader_ = 0;
    bool reaped_ = false;
};

// The environment of this process, where `changes` replace variables of the same name.
std::vector<char*> environment_with(const std::vector<std::string>& changes) {
    std::vector<char*> all;
    for (char** each = environ; *each != nullptr; ++each) {
        const auto same_name = [&](const std::string& change) {
            return std::strncmp(*each, change.c_str(), change.find('=') + 1) == 0;
        };
        if (std::none_of(changes.begin(), changes.end(), same_name)) all.push_back(*each);
    }
    for (const std::string& change : changes) all.push_back(const_cast<char*>(change.c_str()));
    all.push_back(nullptr);
    return all;
}

Process::Process(const std::vector<std::string>& command, int messages,
                 const ProcessOptions& options)
    : grace_(options.grace) {
    // NOTES: glibc before 2.29 closes a descriptor that already has the right number.
    const Descriptor moved(
        options.given_file == GIVEN_FILE ? fcntl(GIVEN_FILE, F_DUPFD_CLOEXEC, GIVEN_FILE + 1) : -1);
    const int given = options.given_file == GIVEN_FILE ? moved.number() : options.given_file;
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, messages, 1);
    posix_spawn_file_actions_adddup2(&files, messages, 2);
    if (given >= 0) posix_spawn_file_actions_adddup2(&files, given, GIVEN_FILE);
    // Hosts may ignore or block signals that programs need.
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    for (const int each : {SIGCHLD, SIGPIPE, SIGINT, SIGTERM, SIGQUIT}) sigaddset(&defaults, each);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    std::vector<char*> environment = environment_with(options.environment);
    const int failed = posix_spawnp(&leader_, arguments[0], &files, &attributes, arguments.data(),
                                    environment.data());
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    if (failed != 0)
        throw std::runtime_error(std::string("cannot be started (") + std::strerror(failed) + ")");
}

bool executable(const fs::path& path) {
    std::error_code ignored;
    return access(path.c_str(), X_OK) == 0 && fs::is_regular_file(path, ignored);
}

}  // namespace

std::string find_program(const std::string& program) {
    if (program.find('/') != std::string::npos) return executable(program) ? program : "";
    const std::string folders =
        std::getenv("PATH") != nullptr ? std::getenv("PATH") : "/usr/local/bin:/usr/bin:/bin";
    for (const std::string& folder : split_at(folders, ':')) {
        const fs::path path = fs::path(folder.empty() ? "." : folder) / program;
        if (executable(path)) return path.string();
    }
    return "";
}

ProcessResult run_process(const std::vector<std::string>& command, const ProcessOptions& options) {
    const auto start = std::chrono::steady_clock::now();
    const auto limit = std::chrono::seconds(options.seconds);
    const Descriptor messages = unnamed_file(nullptr, 0, true);
    Process process(command, messages.number(), options);
    for (std::chrono::milliseconds nap{1}; !process.has_ended();) {
        if (options.seconds > 0 && std::chrono::steady_clock::now() - start > limit)
            throw std::runtime_error("did not end within " + std::to_string(options.seconds) +
                                     " s and was stopped");
        poll_interrupt();
        std::this_thread::sleep_for(nap);
        nap = std::min(2 * nap, std::chrono::milliseconds(10));
    }
    const int status = process.exit_status();
    const off_t bytes = std::max<off_t>(lseek(messages.number(), 0, SEEK_END), 0);
    return {status, read_part(messages.number(), 0, static_cast<std::uint64_t>(bytes))};
}

}  // namespace mdcg
