#include "core/cuda_kernels.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <numeric>
#include <sstream>
#include <system_error>
#include <thread>

#include "core/cpu.hpp"
#include "core/kernel_cache.hpp"
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

std::string variable(const char* name) {
    const char* text = std::getenv(name);
    return text != nullptr ? text : "";
}

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
    for (const std::string& path : candidates()) try {
            found.library = std::make_unique<Nvrtc>(path);
            found.path = path;
            return found;
        } catch (const std::runtime_error& error) {
            if (reason.empty()) reason = error.what();
        }
    if (!variable("MDCG_NVRTC_LIB").empty())
        throw KernelError("the NVRTC library named by MDCG_NVRTC_LIB cannot be used (" + reason +
                          "): correct the variable or unset it");
    throw KernelError(
        "NVRTC, which compiles CUDA kernels, was not found (searched $MDCG_NVRTC_LIB, Python "
        "packages beside mdcg, $CUDA_HOME, the loader's path): " +
        std::string(INSTALL) + ", or use a package with machine code (mdcg-patch --bundle)");
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
    const std::string version = "NVRTC " + std::to_string(nvrtc.library->version_major()) + "." +
                                std::to_string(nvrtc.library->version_minor());
    const std::vector<int>& known = nvrtc.library->architectures();
    const int wanted = std::atoi(target.c_str() + 3);  // after "sm_"
    if (std::find(known.begin(), known.end(), wanted) == known.end()) {
        std::string list;
        for (const int each : known)
            list += (list.empty() ? "sm_" : ", sm_") + std::to_string(each);
        const bool newer = !known.empty() && wanted < *std::min_element(known.begin(), known.end());
        throw KernelError(version + " (" + nvrtc.path + ") is too " + (newer ? "new" : "old") +
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
        throw KernelError(version + " (" + nvrtc.path +
                          ") misses its libnvrtc-builtins, which must lie beside it: " + INSTALL);
    throw KernelError(version + " rejected a generated kernel (" + first_error(result.log) +
                      "): this is a fault of mdcg, please report it with the version");
}

// -- cache ---------------------------------------------------------------------------------------

// False while another process makes it and `wait` is not set.
bool build(const KernelCache& cache, const std::string& key, const CudaSource& source,
           const std::string& target, bool wait, CudaBinary& out) {
    try {
        std::string folder = cache.find(key);
        if (folder.empty()) {
            if (jit_disabled())
                throw KernelError("kernel " + key + " (" + target +
                                  ") is not in the cache and MDCG_DISABLE_JIT=1 forbids compiling "
                                  "it: unset the variable or fill the cache on another machine");
            const auto lock = cache.lock(key, wait);
            if (lock == nullptr) return false;
            folder = cache.find(key);
            if (folder.empty()) {
                const auto start = std::chrono::steady_clock::now();
                folder = cache.make(*lock, key, [&](const std::string& temporary) {
                    write_file(temporary + "/kernel.cu", source.text);
                    write_file(temporary + "/" + BINARY, compile(source, target));
                });
                const auto end = std::chrono::steady_clock::now();
                out.seconds = std::chrono::duration<double>(end - start).count();
                out.compiled = true;
            }
        }
        out.cubin = read_file(folder + "/" + BINARY);
    } catch (const std::exception& error) {
        out.error = error.what();
    }
    return true;
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
    std::vector<CudaBinary> out(sources.size());
    std::vector<std::size_t> missing(sources.size());
    std::iota(missing.begin(), missing.end(), std::size_t(0));
    std::stable_sort(missing.begin(), missing.end(), [&](std::size_t a, std::size_t b) {
        return sources[a].text.size() > sources[b].text.size();
    });
    const auto limit = static_cast<std::size_t>(usable_processors());
    // First what nobody else is at, then wait for the others: no thread holds one lock and waits
    // for another.
    for (const bool wait : {false, true}) {
        std::atomic<std::size_t> next{0};
        std::vector<char> done(missing.size(), 0);
        const auto work = [&] {
            for (std::size_t k; (k = next++) < missing.size();) {
                const std::size_t i = missing[k];
                done[k] =
                    build(cache, cuda_kernel_key(sources[i]), sources[i], target, wait, out[i]);
            }
        };
        std::vector<std::thread> threads;
        for (std::size_t t = 1; t < std::min(limit, missing.size()); ++t) try {
                threads.emplace_back(work);
            } catch (const std::system_error&) {
                break;  // fewer, then
            }
        work();
        for (std::thread& thread : threads) thread.join();
        std::vector<std::size_t> rest;
        for (std::size_t k = 0; k < missing.size(); ++k)
            if (!done[k]) rest.push_back(missing[k]);
        missing.swap(rest);
    }
    return out;
}

void discard_cuda_kernel(const CudaSource& source, const std::string& target) {
    KernelCache(target, BINARY).discard(cuda_kernel_key(source));
}

}  // namespace mdcg
