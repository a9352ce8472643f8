#include "engine/kernels/kernel_finder.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <mutex>

#include "core/cpu.hpp"
#include "core/device.hpp"
#include "core/kernel_cache.hpp"
#include "core/process.hpp"
#include "core/text.hpp"
#include "engine/error.hpp"

namespace mdcg {

namespace fs = std::filesystem;

namespace {

const char* const SUFFIX = ".mdcg-kernels";
const char* const BINARY = "package.mdcg-kernels";  // the same name as in kernel_file.py

// Oldest compute capability: kernels use asynchronous copies.
constexpr int OLDEST_DEVICE = 80;
constexpr int OLDEST_GFX = 0x900;

// Runs mdcg's command without the current folder in the path, where others may have put files.
const char* const RUN =
    "import sys; sys.path[:] = [p for p in sys.path if p]; from mdcg.cli.main import main; "
    "sys.exit(main())";

std::mutex python_mutex;
std::string& present_python() {
    static std::string path;
    return path;
}

// The Python of the environment in which this library is installed:
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

// The last sentence that mdcg's command printed.
std::string last_line(const std::string& messages) {
    std::string last;
    for (const std::string& line : split_at(messages, '\n'))
        if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
    const std::string own = "mdcg: ";
    if (last.compare(0, own.size(), own) == 0) last.erase(0, own.size());
    return last.size() > 800 ? last.substr(0, 800) + "..." : last;
}

// Targets whose code runs on this CPU (capability 0) or on a device, the best first. A device also
// runs code for earlier devices of its generation.
std::vector<std::string> targets_for(int capability) {
    std::vector<std::string> found;
    if (capability == 0) {
        found.push_back(host_target("native"));
        for (const char* level : {"x86-64-v4", "x86-64-v3", "x86-64-v2"})
            if (has_instruction_set(level)) found.emplace_back(level);
    }
    if (is_gfx(capability)) return {target_name(capability)};  // code runs on no other device
    for (int n = capability; n >= std::max(capability / 10 * 10, 1); --n)
        found.push_back(target_name(n));
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

std::string too_old(int capability, int oldest) {
    if (is_gfx(capability))
        return "the device is " + target_name(capability) + ", kernels need " +
               target_name(oldest) + " or later: use device \"cpu\"";
    const auto version = [](int number) {
        return std::to_string(number / 10) + "." + std::to_string(number % 10);
    };
    return "the device has compute capability " + version(capability) + ", CUDA kernels need " +
           version(oldest) + " or later: use device \"cpu\"";
}

KernelFinder::KernelFinder(std::shared_ptr<const Package> package, KernelChoice choice,
                           int capability)
    : package_(std::move(package)), choice_(std::move(choice)), targets_(targets_for(capability)) {
    const int oldest = is_gfx(capability) ? OLDEST_GFX : OLDEST_DEVICE;
    if (capability != 0 && capability < oldest) refusal_ = too_old(capability, oldest);
    if (!choice_.file.empty()) find();  // a file that does not fit is refused at once
}

const std::string& KernelFinder::problem() const {
    if (text_.empty()) text_ = kernel_problem(*package_);
    return text_;
}

std::string KernelFinder::command(const std::string& target) const {
    const bool native = target == host_target("native");
    return "python -m mdcg kernels " + package_->path() + " --target " +
           (native ? "native" : target);
}

const FoundKernels& KernelFinder::find() {
    if (found_.file != nullptr) return found_;
    if (!refusal_.empty()) throw EngineError(ErrorKind::unsupported, refusal_);
    found_ = choice_.file.empty() ? cached() : named();
    if (found_.file == nullptr) found_ = make(targets_[0], false);
    return found_;
}

bool KernelFinder::make_again() {
    if (found_.origin != "cached" || has_made_again_) return false;
    has_made_again_ = true;
    found_ = make(found_.target, true);
    return true;
}

std::string KernelFinder::outlook() const {
    const std::string text = "kernels: not loaded";
    if (!choice_.file.empty() || choice_.mode == KernelChoice::generic || jit_disabled())
        return text;
    if (cached().file != nullptr) return text;
    return text + ", because none are cached: python -m mdcg kernels will make them";
}

FoundKernels KernelFinder::named() const {
    FoundKernels found;
    found.origin = "named";
    found.file = std::make_shared<KernelFile>(Package::open(choice_.file, Package::Kind::kernels));
    std::string reason = found.file->misfit(problem());
    if (reason.empty()) {
        for (const std::string& target : targets_)
            if (found.target = target; found.file->has(target)) return found;
        reason = "has no kernels for " + targets_[0];
    }
    throw EngineError(ErrorKind::file, choice_.file + " " + reason + ": make it again with '" +
                                           command(targets_[0]) + " --output " + choice_.file +
                                           "'");
}

std::shared_ptr<const KernelFile> KernelFinder::read(std::string content,
                                                     const std::string& path) const {
    try {
        auto file = std::make_shared<const KernelFile>(
            Package::parse(std::move(content), path, Package::Kind::kernels));
        return file->misfit(problem()).empty() ? file : nullptr;
    } catch (const EngineError&) {
        return nullptr;
    }
}

FoundKernels KernelFinder::cached() const {
    for (const std::string& target : targets_)
        if (FoundKernels found = cached(target); found.file != nullptr) return found;
    return {};
}

FoundKernels KernelFinder::cached(const std::string& target) const {
    const KernelCache cache(target, BINARY);
    const std::string key = kernel_key(problem());
    const CachedKernelPtr entry = cache.find(key);
    if (entry == nullptr) return {};
    FoundKernels found;
    found.file = read(std::move(entry->binary), entry->file.path());
    if (found.file == nullptr) cache.discard(key);  // it is made again
    found.target = target;
    found.origin = "cached";
    return found;
}

FoundKernels KernelFinder::make(const std::string& target, bool again) const {
    FoundKernels found;
    const std::string advice = "run '" + command(target) + "' beforehand";
    if (jit_disabled()) {
        found.why = "kernels for " + target +
                    " are not in the cache and MDCG_DISABLE_JIT=1 forbids compiling them: unset "
                    "the variable, or " +
                    advice;
        return found;
    }
    try {
        const KernelCache cache(target, BINARY);
        const std::string key = kernel_key(problem());
        std::string by;
        double seconds = 0;
        if (again) cache.discard(key);
        cache.make(key, [&](const std::string& folder) {
            const auto start = std::chrono::steady_clock::now();
            by = run_python(target, again, folder);
            seconds =
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        });
        found = cached(target);
        if (found.file == nullptr) throw KernelError("kernels of the cache have been deleted");
        if (by.empty()) return found;  // another process has made them
        found.origin = "made";
        found.by = by;
        found.seconds = seconds;
    } catch (const std::runtime_error& error) {
        found = FoundKernels();
        found.why = std::string(error.what()) + "; where kernels cannot be made, " + advice;
    }
    return found;
}

std::string KernelFinder::run_python(const std::string& target, bool again,
                                     const std::string& folder) const {
    const std::string python = find_python(), by = python + " -m mdcg kernels";
    const std::string output = folder + "/" + BINARY;
    // the file of the package may have been replaced since it was read
    const Descriptor package =
        unnamed_file(package_->content().data(), package_->content().size(), true);
    std::vector<std::string> command = {
        python,     "-c",   RUN,        "kernels", "/dev/fd/" + std::to_string(GIVEN_FILE),
        "--target", target, "--output", output};
    if (again) command.emplace_back("--again");
    ProcessOptions options;
    // <root>/<version>/tmp/<folder>
    const fs::path root = fs::path(folder).parent_path().parent_path().parent_path();
    options.environment = {"MDCG_CACHE_DIR=" + root.string()};
    options.given_file = package.number();
    options.grace = std::chrono::seconds(2);  // Python needs time to end its compilers
    ProcessResult done{};
    try {
        done = run_process(command, options);
    } catch (const std::runtime_error& error) {
        throw KernelError(python + " " + error.what());
    }
    if (done.status != 0) {
        const std::string reason = last_line(done.messages);
        throw KernelError(
            !reason.empty() ? reason : by + " ended with status " + std::to_string(done.status));
    }
    std::error_code ignored;
    if (!fs::exists(output, ignored) || read(read_file(output), output) == nullptr)
        throw KernelError(by +
                          " made none that this library loads: it is of another mdcg, set "
                          "MDCG_PYTHON to the one of mdcg " MDCG_VERSION);
    return by;
}

}  // namespace mdcg
