#include "core/cuda_kernels.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <numeric>
#include <sstream>
#include <system_error>

#include "core/cpu.hpp"
#include "core/cuda_driver.hpp"
#include "core/kernel_builds.hpp"
#include "core/nvrtc.hpp"

namespace mdcg {

namespace fs = std::filesystem;

namespace {

// As mdcg/runtime/nvrtc.py has them: the cache's keys contain them.
const std::vector<std::string> FLAGS = {"--std=c++17", "-default-device", "--disable-warnings"};
const char* const SONAMES[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
const char* const INSTALL =
    "install it with 'pip install nvidia-cuda-nvrtc' or the CUDA toolkit, or set MDCG_NVRTC_LIB to "
    "its file";
const char* const BINARY = "kernel.cubin";

// -- NVRTC ---------------------------------------------------------------------------------------

std::mutex& nvrtc_mutex() {
    static std::mutex mutex;
    return mutex;
}
std::string& given_path() {
    static std::string path;
    return path;
}

// Files named libnvrtc.so*, newest first.
void add_folder(const fs::path& folder, std::vector<std::string>& paths) {
    std::error_code error;
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
        const std::string name = entry.path().filename().string();
        if (name.compare(0, 8, "libnvrtc") == 0 && name.find(".so") != std::string::npos &&
            name.find("builtins") == std::string::npos)
            found.push_back(entry.path().string());
    }
    std::sort(found.rbegin(), found.rend());
    paths.insert(paths.end(), found.begin(), found.end());
}

// The folder of Python packages that this library is installed in, if it is.
fs::path site_packages() {
    Dl_info info;
    if (dladdr(reinterpret_cast<void*>(&set_nvrtc_path), &info) == 0 || info.dli_fname == nullptr)
        return {};
    std::error_code error;
    const fs::path file = fs::canonical(info.dli_fname, error);
    return error ? fs::path() : file.parent_path().parent_path();
}

std::vector<std::string> candidates() {
    const std::string named = variable("MDCG_NVRTC_LIB");
    if (!named.empty()) return {named};
    std::vector<std::string> paths;
    if (!given_path().empty()) paths.push_back(given_path());
    const fs::path site = site_packages();
    if (!site.empty()) {
        for (const char* inside :
             {"nvidia/cu13/lib", "nvidia/cu12/lib", "nvidia/cuda_nvrtc/lib", "torch/lib"})
            add_folder(site / inside, paths);
    }
    for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
        if (variable(name).empty()) continue;
        add_folder(fs::path(variable(name)) / "lib64", paths);
        add_folder(fs::path(variable(name)) / "lib", paths);
        break;
    }
    paths.insert(paths.end(), std::begin(SONAMES), std::end(SONAMES));
    return paths;
}

struct Found {
    std::unique_ptr<Nvrtc> library;
    std::string path;
};

// Looked for until it is found; throws KernelError.
const Found& find_nvrtc() {
    static Found found;
    const std::lock_guard<std::mutex> guard(nvrtc_mutex());
    if (found.library != nullptr) return found;
    std::string reason;
    const int driver = CudaDriver::version_there() / 1000;
    // the first whose machine code the driver loads, or just the first
    for (const std::string& path : candidates()) try {
            auto library = std::make_unique<Nvrtc>(path);
            const bool good = driver == 0 || library->version_major() <= driver;
            if (found.library == nullptr || good) found = {std::move(library), path};
            if (good) break;
        } catch (const std::runtime_error& error) {
            if (reason.empty()) reason = error.what();
        }
    if (found.library != nullptr) return found;
    if (!variable("MDCG_NVRTC_LIB").empty())
        throw KernelError("the NVRTC library named by MDCG_NVRTC_LIB cannot be used (" + reason +
                          "): correct the variable or unset it");
    throw KernelError(
        "NVRTC, which compiles CUDA kernels, was not found (searched $MDCG_NVRTC_LIB, Python "
        "packages beside mdcg, $CUDA_HOME, the loader's path): " +
        std::string(INSTALL) + ", or use a package with machine code (mdcg-patch --bundle)");
}

// "NVRTC 13.0 (/usr/local/cuda/lib64/libnvrtc.so.13)"
std::string name_of(const Found& nvrtc) {
    return "NVRTC " + std::to_string(nvrtc.library->version_major()) + "." +
           std::to_string(nvrtc.library->version_minor()) + " (" + nvrtc.path + ")";
}

std::string first_error(const std::string& log) {
    std::istringstream lines(log);
    std::string first;
    for (std::string line; std::getline(lines, line);) {
        if (first.empty()) first = line;
        if (line.find("error") != std::string::npos) return line;
    }
    return first;
}

std::string compile(const CudaSource& source, const std::string& target) {
    const Found& nvrtc = find_nvrtc();
    const std::string name = name_of(nvrtc);
    const std::vector<int>& known = nvrtc.library->architectures();
    const int wanted = std::atoi(target.c_str() + 3);  // after "sm_"
    if (std::find(known.begin(), known.end(), wanted) == known.end()) {
        std::string list;
        for (const int each : known)
            list += (list.empty() ? "sm_" : ", sm_") + std::to_string(each);
        const bool newer = !known.empty() && wanted < *std::min_element(known.begin(), known.end());
        throw KernelError(name + " is too " + (newer ? "new" : "old") +
                          " for this card: it does not compile for " + target + ", only for " +
                          list + "; install another with 'pip install " +
                          (newer ? "nvidia-cuda-nvrtc-cu12" : "--upgrade nvidia-cuda-nvrtc") +
                          "', or set MDCG_NVRTC_LIB to its file");
    }
    std::vector<std::string> options = {"--gpu-architecture=" + target};
    options.insert(options.end(), FLAGS.begin(), FLAGS.end());
    options.insert(options.end(), source.options.begin(), source.options.end());
    NvrtcResult result = nvrtc.library->compile(source.text, "kernel.cu", options);
    if (result.ok) return std::move(result.cubin);
    if (result.log.find("libnvrtc-builtins") != std::string::npos)
        throw KernelError(name +
                          " misses its libnvrtc-builtins, which must lie beside it: " + INSTALL);
    throw KernelError(name + " rejected a generated kernel (" + first_error(result.log) +
                      "): this is a fault of mdcg, please report it with the version");
}

}  // namespace

std::string cuda_kernel_key(const CudaSource& source) {
    std::vector<std::string> texts = {source.text};
    texts.insert(texts.end(), FLAGS.begin(), FLAGS.end());
    texts.insert(texts.end(), source.options.begin(), source.options.end());
    return KernelCache::key(texts);
}

void set_nvrtc_path(const std::string& path) {
    const std::lock_guard<std::mutex> guard(nvrtc_mutex());
    given_path() = path;
}

std::vector<CudaBinary> load_cuda_kernels(const std::vector<CudaSource>& sources,
                                          const std::string& target) {
    const KernelCache cache(target, BINARY);
    std::vector<std::string> keys;
    for (const CudaSource& source : sources) keys.push_back(cuda_kernel_key(source));
    std::vector<std::size_t> order(sources.size());
    std::iota(order.begin(), order.end(), std::size_t(0));
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return sources[a].text.size() > sources[b].text.size();
    });
    const auto make = [&](std::size_t i, const std::string& folder) {
        write_file(folder + "/kernel.cu", sources[i].text);
        write_file(folder + "/" + BINARY, compile(sources[i], target));
    };
    const std::vector<KernelBuild> builds =
        build_all(cache, keys, std::move(order), usable_processors(), make,
                  "unset the variable or fill the cache on another machine");
    std::vector<CudaBinary> out;
    for (const KernelBuild& build : builds) {
        CudaBinary binary{{}, build.error, build.compiled, build.seconds};
        if (build.error.empty()) try {
                binary.cubin = read_file(build.folder + "/" + BINARY);
            } catch (const std::runtime_error& error) {  // removed in between
                binary.error = error.what();
            }
        out.push_back(std::move(binary));
    }
    return out;
}

int nvrtc_version() {
    try {
        const Found& found = find_nvrtc();
        return 1000 * found.library->version_major() + 10 * found.library->version_minor();
    } catch (const KernelError&) {
        return 0;
    }
}

std::string nvrtc_text() {
    try {
        return name_of(find_nvrtc());
    } catch (const KernelError&) {
        return "NVRTC";
    }
}

void discard_cuda_kernel(const CudaSource& source, const std::string& target) {
    KernelCache(target, BINARY).discard(cuda_kernel_key(source));
}

}  // namespace mdcg
