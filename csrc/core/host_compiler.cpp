#include "core/host_compiler.hpp"

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
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "core/cpu.hpp"
#include "core/kernel_builds.hpp"

extern char** environ;

namespace mdcg {

namespace fs = std::filesystem;

namespace {

// No exceptions and no libraries that are not needed: a kernel loads wherever libmdcg does.
const std::vector<std::string> FLAGS = {"-std=c++17",      "-O3",
                                        "-fPIC",           "-shared",
                                        "-fno-math-errno", "-ffp-contract=fast",
                                        "-fno-exceptions", "-fno-rtti",
                                        "-Wl,--as-needed", "-w"};
const char* const CANDIDATES[] = {"c++", "g++", "clang++"};

// Words of a command line as a POSIX shell has them: quotes and backslashes, no expansion.
std::vector<std::string> split(const std::string& text, const std::string& name) {
    std::vector<std::string> words;
    std::string word;
    bool inside = false;
    char quote = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (quote != 0) {
            if (c == quote)
                quote = 0;
            else if (c == '\\' && quote == '"' && i + 1 < text.size() &&
                     (text[i + 1] == '"' || text[i + 1] == '\\'))
                word += text[++i];
            else
                word += c;
        } else if (c == '\'' || c == '"') {
            quote = c;
            inside = true;
        } else if (c == '\\' && i + 1 < text.size()) {
            word += text[++i];
            inside = true;
        } else if (std::strchr(" \t\n\r", c) != nullptr) {
            if (inside) words.push_back(word);
            word.clear();
            inside = false;
        } else {
            word += c;
            inside = true;
        }
    }
    if (quote != 0)
        throw KernelError(name + " is '" + text +
                          "', which is not a command (a quote is not closed): correct it");
    if (inside) words.push_back(word);
    return words;
}

bool executable(const fs::path& path) {
    std::error_code ignored;
    return access(path.c_str(), X_OK) == 0 && fs::is_regular_file(path, ignored);
}

// Full path of a program, empty if there is none.
std::string which(const std::string& program) {
    if (program.find('/') != std::string::npos) return executable(program) ? program : "";
    std::istringstream folders(std::getenv("PATH") != nullptr ? variable("PATH")
                                                              : "/usr/local/bin:/usr/bin:/bin");
    for (std::string folder; std::getline(folders, folder, ':');) {
        const fs::path path = fs::path(folder.empty() ? "." : folder) / program;
        if (executable(path)) return path.string();
    }
    return "";
}

// Runs a program to its end, output and errors into a file; returns its exit status, or -1.
int run(const std::vector<std::string>& command, const std::string& log) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    // hosts may ignore or block signals that a compiler counts on
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    for (const int each : {SIGCHLD, SIGPIPE, SIGINT, SIGTERM, SIGQUIT}) sigaddset(&defaults, each);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);

    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    pid_t child = 0;
    const int failed =
        posix_spawn(&child, command[0].c_str(), &files, &attributes, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    if (failed != 0)
        throw KernelError("the C++ compiler " + command[0] + " cannot be started (" +
                          std::strerror(failed) + "): set MDCG_CXX to choose another one");
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
        // a host that ignores SIGCHLD has no statuses: the output decides
        if (errno != EINTR) return 0;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Up to three lines that say what is wrong, on one line.
std::string first_lines(const std::string& log) {
    std::vector<std::string> chosen, all;
    std::istringstream lines(log);
    for (std::string line; std::getline(lines, line);) {
        line.erase(0, std::min(line.find_first_not_of(" \t"), line.size()));
        if (line.empty()) continue;
        if (all.size() < 3) all.push_back(line);
        if (line.find("error") != std::string::npos && chosen.size() < 3) chosen.push_back(line);
    }
    std::string text;
    for (const std::string& line : chosen.empty() ? all : chosen)
        text += (text.empty() ? "" : " | ") + line;
    return text.size() > 600 ? text.substr(0, 600) + "..." : text;
}

void compile(const std::string& source, const HostTarget& target, const std::string& folder) {
    std::vector<std::string> command = find_host_compiler();
    std::string shown;
    for (const std::string& word : command) shown += (shown.empty() ? "" : " ") + word;
    const std::string text = folder + "/kernel.cpp", binary = folder + "/kernel.so";
    const std::string log = folder + "/compiler.log";
    write_file(text, source);
    command.insert(command.end(), FLAGS.begin(), FLAGS.end());
    command.insert(command.end(), target.flags.begin(), target.flags.end());
    command.insert(command.end(), {"-o", binary, text});
    const int status = run(command, log);
    std::error_code ignored;
    if (status == 0 && fs::is_regular_file(binary, ignored)) {
        fs::remove(log, ignored);
        return;
    }
    const fs::path kept = fs::path(folder).parent_path() /
                          ("failed-" + fs::path(folder).filename().string() + ".cpp");
    std::string why;
    try {
        write_file(kept.string(), source);
        why = first_lines(read_file(log));
    } catch (const std::runtime_error&) {
    }
    for (std::size_t at; (at = why.find(folder + "/")) != std::string::npos;)
        why.erase(at, folder.size() + 1);
    throw KernelError(shown + " rejected a generated kernel (" +
                      (why.empty() ? "exit status " + std::to_string(status) : why) +
                      "): source kept in " + kept.string() +
                      "; mdcg needs gcc >= 11 or clang >= 12, set MDCG_CXX to choose another "
                      "compiler");
}

}  // namespace

HostTarget HostTarget::of(const std::string& level) {
#if defined(__x86_64__)
    const std::string option = "-march=";
#else
    const std::string option = "-mcpu=";
#endif
    if (level == "native")
        return {"native-" + instruction_set_level() + "-" + cpu_signature(), {option + "native"}};
#if defined(__x86_64__)
    if (level == "x86-64-v2" || level == "x86-64-v3" || level == "x86-64-v4")
        return {level, {option + level}};
#endif
    throw std::invalid_argument("'" + level +
                                "' is no instruction set of this kind of processor, expected "
                                "native"
#if defined(__x86_64__)
                                ", x86-64-v2, x86-64-v3 or x86-64-v4"
#endif
    );
}

std::vector<std::string> find_host_compiler() {
    for (const char* name : {"MDCG_CXX", "CXX"}) {
        if (variable(name).empty()) continue;
        std::vector<std::string> command = split(variable(name), name);
        if (command.empty()) break;  // blanks: as if unset
        const std::string path = which(command[0]);
        if (path.empty())
            throw KernelError("the C++ compiler '" + command[0] + "' named by " + name +
                              " was not found: correct the variable or unset it");
        command[0] = path;
        return command;
    }
    for (const char* candidate : CANDIDATES) {
        const std::string path = which(candidate);
        if (!path.empty()) return {path};
    }
    throw KernelError(
        "no C++ compiler was found (searched $MDCG_CXX, $CXX, c++, g++, clang++): install one, for "
        "example with 'apt install g++', store compiled kernels in the package (mdcg-patch "
        "--bundle), or set MDCG_CACHE_DIR to a folder that holds them");
}

std::vector<BuiltKernel> build_kernels(const std::vector<std::string>& sources,
                                       const HostTarget& target, int processes) {
    std::vector<std::string> keys;
    for (const std::string& source : sources) {
        std::vector<std::string> texts = {source};
        texts.insert(texts.end(), FLAGS.begin(), FLAGS.end());
        texts.insert(texts.end(), target.flags.begin(), target.flags.end());
        keys.push_back(KernelCache::key(texts));
    }
    std::vector<std::size_t> order(sources.size());
    std::iota(order.begin(), order.end(), std::size_t(0));
    const auto make = [&](std::size_t i, const std::string& folder) {
        compile(sources[i], target, folder);
    };
    const std::vector<KernelBuild> builds =
        build_all(KernelCache(target.name), keys, std::move(order),
                  processes > 0 ? processes : usable_processors(), make,
                  "unset the variable, or store compiled kernels in the package (mdcg-patch "
                  "--bundle)");
    std::vector<BuiltKernel> out;
    for (const KernelBuild& build : builds)
        out.push_back({build.folder.empty() ? "" : build.folder + "/kernel.so", build.error,
                       build.compiled, build.seconds});
    return out;
}

}  // namespace mdcg
