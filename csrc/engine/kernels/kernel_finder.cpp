#include "engine/kernels/kernel_finder.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <mutex>

#include "core/cpu.hpp"
#include "core/kernel_cache.hpp"
#include "core/process.hpp"
#include "engine/error.hpp"

namespace mdcg {

namespace fs = std::filesystem;

namespace {

const char* const SUFFIX = ".mdcg-kernels";
const char* const BINARY = "package.mdcg-kernels";  // as mdcg/package/kernel_file.py has it

// Kernels use copies that older ones do not have.
constexpr int OLDEST_DEVICE = 80;

// The module is run without the present folder, where files of others may lie.
const char* const RUN =
    "import sys; sys.path[:] = [p for p in sys.path if p]; from mdcg.cli.main import main; "
    "sys.exit(main())";

std::mutex python_mutex;
std::string& present_python() {
    static std::string path;
    return path;
}

// That of the environment in which this library is installed:
// <prefix>/lib/python3.11/site-packages/mdcg/libmdcg.so belongs to <prefix>/bin/python3.11.
std::string python_of_library() {
    Dl_info info;
    std::error_code error;
    if (dladdr(reinterpret_cast<const void*>(&set_python), &info) == 0) return "";
    const fs::path file = fs::canonical(info.dli_fname, error);
    if (error) return "";
    const fs::path folder = file.parent_path().parent_path().parent_path();
    const std::string name = folder.filename().string();
    if (name.compare(0, 6, "python") != 0) return "";
    const fs::path prefix = folder.parent_path().parent_path();
    for (const std::string& each : {(prefix / "bin" / name).string(), name})
        if (const std::string found = find_program(each); !found.empty()) return found;
    return "";
}

// Throws KernelError.
std::string find_python() {
    const std::string named = variable("MDCG_PYTHON");
    if (!named.empty()) {
        const std::string found = find_program(named);
        if (found.empty())
            throw KernelError("the Python '" + named +
                              "' that MDCG_PYTHON names was not found: correct the variable or "
                              "unset it");
        return found;
    }
    {
        const std::lock_guard<std::mutex> guard(python_mutex);
        if (!present_python().empty()) return present_python();
    }
    const std::string found = python_of_library();
    if (found.empty())
        throw KernelError(
            "the Python that mdcg is installed in was not found: set MDCG_PYTHON to it");
    return found;
}

// The sentence that a program ended with.
std::string last_line(const std::string& messages) {
    std::string last;
    for (const std::string& line : split_at(messages, '\n'))
        if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
    const std::string own = "mdcg: ";
    if (last.compare(0, own.size(), own) == 0) last.erase(0, own.size());
    return last.size() > 800 ? last.substr(0, 800) + "..." : last;
}

// What this CPU runs of the targets that kernels are made for; the best comes first.
std::vector<std::string> host_choices() {
    std::vector<std::string> found = {host_target("native")};
    for (const char* level : {"x86-64-v4", "x86-64-v3", "x86-64-v2"})
        if (has_instruction_set(level)) found.emplace_back(level);
    return found;
}

// The same for a device. Code serves later devices of the same generation.
std::vector<std::string> device_choices(int capability) {
    std::vector<std::string> found;
    for (int n = capability; n >= capability / 10 * 10; --n)
        found.push_back("sm_" + std::to_string(n));
    return found;
}

}  // namespace

KernelChoice KernelChoice::parse(const std::string& text) {
    const std::string suffix = SUFFIX;
    if (text.empty() || text == "auto") return {automatic, ""};
    if (text == "generic") return {generic, ""};
    if (text == "generated") return {generated, ""};
    const bool named = text.find('/') != std::string::npos ||
                       (text.size() > suffix.size() &&
                        text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0);
    if (named) return {generated, text};
    bad_argument("kernels is '" + text +
                 "', expected auto, generic, generated or the name "
                 "of a file that ends in " +
                 SUFFIX);
}

std::string kernel_summary(const FoundKernels& found, std::size_t loaded, std::size_t generic) {
    std::string text = "kernels: ";
    if (loaded + generic == 0) return text + "not loaded";
    if (loaded > 0) text += std::to_string(loaded) + " " + found.origin;
    if (loaded > 0 && !found.by.empty())
        text += " in " + number_text(found.seconds, 2) + " s by " + found.by;
    if (generic > 0) text += (loaded > 0 ? ", " : "") + std::to_string(generic) + " generic";
    return found.why.empty() ? text : text + ", because " + found.why;
}

void set_python(const std::string& path) {
    const std::lock_guard<std::mutex> guard(python_mutex);
    present_python() = path;
}

KernelFinder::KernelFinder(std::shared_ptr<const Package> package, KernelChoice choice)
    : package_(std::move(package)), choice_(std::move(choice)) {}

const std::string& KernelFinder::problem() const {
    if (text_.empty()) text_ = kernel_problem(*package_);
    return text_;
}

std::string KernelFinder::command(const std::string& target, const std::string& precision) const {
    const bool native = target == host_target("native");
    return "python -m mdcg kernels " + package_->path() + " --target " +
           (native ? "native" : target) + (precision.empty() ? "" : " --precision " + precision);
}

FoundKernels KernelFinder::for_host() {
    const std::vector<std::string> choices = host_choices();
    if (!choice_.file.empty()) return named(choices[0], choices, "");
    FoundKernels found = cached(choices, "");
    return found.file != nullptr ? found : make(choices[0], "", false);
}

FoundKernels KernelFinder::for_device(int capability, const std::string& precision) {
    if (capability < OLDEST_DEVICE)
        throw EngineError(ErrorKind::unsupported,
                          "the device has compute capability " + std::to_string(capability / 10) +
                              "." + std::to_string(capability % 10) +
                              ", CUDA kernels need 8.0 or later: use device \"cpu\"");
    const std::vector<std::string> choices = device_choices(capability);
    if (!choice_.file.empty()) return named(choices[0], choices, precision);
    FoundKernels found = cached(choices, precision);
    return found.file != nullptr ? found : make(choices[0], precision, false);
}

std::string KernelFinder::outlook(int capability, const std::string& precision) const {
    const std::string text = "kernels: not loaded";
    if (!choice_.file.empty() || choice_.mode == KernelChoice::generic || jit_disabled())
        return text;
    const std::vector<std::string> choices =
        capability == 0 ? host_choices() : device_choices(capability);
    if (cached(choices, precision).file != nullptr) return text;
    return text + ", because none are cached: python -m mdcg kernels will make them";
}

FoundKernels KernelFinder::again(const FoundKernels& unusable, const std::string& precision) {
    return make(unusable.target, precision, true);
}

FoundKernels KernelFinder::named(const std::string& own, const std::vector<std::string>& targets,
                                 const std::string& precision) const {
    FoundKernels found;
    found.origin = "named";
    found.file = std::make_shared<KernelFile>(Package::open(choice_.file, Package::Kind::kernels));
    const auto refuse = [&](const std::string& reason) {
        throw EngineError(ErrorKind::file, choice_.file + " " + reason + ": make it again with '" +
                                               command(own, precision) + " --output " +
                                               choice_.file + "'");
    };
    const std::string misfit = found.file->misfit(problem());
    if (!misfit.empty()) refuse(misfit);
    const std::vector<std::string> hosts = found.file->host_targets();
    const bool device = parse_cuda_target(own) != 0;
    if (device) found.target = found.file->device_target(parse_cuda_target(own));
    for (const std::string& target : targets)
        if (!device && found.target.empty() &&
            std::find(hosts.begin(), hosts.end(), target) != hosts.end())
            found.target = target;
    if (found.target.empty()) refuse("has no kernels for " + own);
    return found;
}

FoundKernels KernelFinder::cached(const std::string& target, const std::string& precision) const {
    FoundKernels found;
    const auto entry = KernelCache(target, BINARY).find(kernel_key(problem(), precision));
    if (entry == nullptr) return found;
    try {
        auto file = std::make_shared<KernelFile>(
            Package::parse(std::move(entry->binary), entry->file.path(), Package::Kind::kernels));
        if (!file->misfit(problem()).empty()) return found;
        found.file = std::move(file);
    } catch (const EngineError&) {  // it is made again
        return found;
    }
    found.target = target;
    found.origin = "cached";
    return found;
}

FoundKernels KernelFinder::cached(const std::vector<std::string>& targets,
                                  const std::string& precision) const {
    for (const std::string& target : targets)
        if (FoundKernels found = cached(target, precision); found.file != nullptr) return found;
    return {};
}

FoundKernels KernelFinder::make(const std::string& target, const std::string& precision,
                                bool again) const {
    FoundKernels found;
    const std::string advice = "run '" + command(target, precision) + "' beforehand";
    if (jit_disabled()) {
        found.why = "kernels for " + target +
                    " are not in the cache and MDCG_DISABLE_JIT=1 forbids compiling them: unset "
                    "the variable, or " +
                    advice;
        return found;
    }
    try {
        const KernelCache cache(target, BINARY);
        const std::string folder = cache.writable_folder();
        const FileLock lock(cache.lock_file(folder, "making-" + kernel_key(problem(), precision)));
        if (!again) found = cached(target, precision);
        if (found.file != nullptr) return found;
        if (!lock.failure().empty()) throw KernelError(lock.failure());
        const auto start = std::chrono::steady_clock::now();
        const std::string python = find_python();
        // the file may have been replaced since it was read
        const Descriptor file =
            unnamed_file(package_->content().data(), package_->content().size(), true);
        std::vector<std::string> command = {
            python,     "-c",  RUN, "kernels", "/dev/fd/" + std::to_string(GIVEN_FILE),
            "--target", target};
        if (!precision.empty()) command.insert(command.end(), {"--precision", precision});
        if (again) command.emplace_back("--again");
        ProcessOptions options;
        options.environment = {"MDCG_CACHE_DIR=" + fs::path(folder).parent_path().string()};
        options.given_file = file.number();
        options.grace = std::chrono::seconds(2);  // it ends its compilers
        ProcessResult done{};
        try {
            done = run_process(command, options);
        } catch (const std::runtime_error& error) {
            throw KernelError(python + " " + error.what());
        }
        found = cached(target, precision);
        if (found.file == nullptr) {
            const std::string said = done.status != 0 ? last_line(done.messages) : "";
            const std::string why =
                !said.empty() ? said
                : done.status != 0
                    ? python + " -m mdcg kernels ended with status " + std::to_string(done.status)
                    : python +
                          " -m mdcg kernels made none that this library loads: it is of "
                          "another mdcg, set MDCG_PYTHON to the one of mdcg " MDCG_VERSION;
            lock.fail(why);
            throw KernelError(why);
        }
        found.origin = "compiled";
        found.by = python + " -m mdcg kernels";
        found.seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    } catch (const std::runtime_error& error) {
        found = FoundKernels();
        found.why = std::string(error.what()) + "; where kernels cannot be made, " + advice;
    }
    return found;
}

}  // namespace mdcg
