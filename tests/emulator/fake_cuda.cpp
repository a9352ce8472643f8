// Emulates the CUDA driver on the host: devices, contexts, libraries of kernels, launches. See
// README.md in this folder.

#include "fake_cuda.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fibers.hpp"

namespace fake_cuda {

namespace {

constexpr int kNvrtcVersion = 13000;  // same as in fake_nvrtc.cpp
constexpr int kStaticLimit = 48 * 1024;

bool initialized = false;
int failed[8] = {};  // error of each device
Context devices[8];
thread_local std::vector<Context*> stack;

int setting(const char* name, int otherwise) {
    const char* const text = std::getenv(name);
    return text != nullptr && *text != '\0' ? std::atoi(text) : otherwise;
}

int num_devices() { return std::min(8, setting("EMULATED_CUDA_DEVICES", 1)); }
int driver_version() { return setting("EMULATED_CUDA_VERSION", kNvrtcVersion); }
int capability() { return setting("EMULATED_CUDA_CAPABILITY", 90); }

constexpr int kHipShared = 64 * 1024;

// Returns the most shared memory of a block. A multiprocessor has 1 KiB more.
int shared_limit() {
    switch (capability()) {
        case 80:
        case 87:
            return 163 * 1024;
        case 86:
        case 89:
        case 120:
        case 121:
            return 99 * 1024;
        default:
            return int(emulation::kSharedBytes);
    }
}

struct Module;

struct Function {
    std::string name;
    Module* module;
    const emulation::Kernel* kernel;
    int dynamic_limit;
};

struct Module {
    Context* context = nullptr;
    void* library = nullptr;
    char *dynamic_shared = nullptr, *static_shared = nullptr;
    std::size_t static_bytes = 0;
    std::map<std::string, std::unique_ptr<Function>> functions;
    ~Module() {
        if (library != nullptr) dlclose(library);
    }
};

// Returns the length of a library in memory, which its table of sections ends.
std::size_t library_bytes(const void* image) {
    Elf64_Ehdr header;
    std::memcpy(&header, image, sizeof header);
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return 0;
    if (header.e_type != ET_DYN || header.e_shentsize != sizeof(Elf64_Shdr)) return 0;
    return header.e_shoff + std::size_t(header.e_shentsize) * header.e_shnum;
}

// Opens a library from a new file, so that two modules never share memory.
void* open_library(const void* image, std::size_t bytes) {
    const char* const folder = std::getenv("TMPDIR");
    std::string path = std::string(folder != nullptr ? folder : "/tmp") + "/emulated-cubin-XXXXXX";
    const int file = mkstemp(path.data());
    if (file < 0) return nullptr;
    std::size_t done = 0;
    while (done < bytes) {
        const ssize_t step = write(file, static_cast<const char*>(image) + done, bytes - done);
        if (step <= 0) break;
        done += std::size_t(step);
    }
    close(file);
    void* const library = done == bytes ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (library == nullptr) std::fprintf(stderr, "emulated cuModuleLoadData: %s\n", dlerror());
    unlink(path.c_str());
    return library;
}

}  // namespace

std::recursive_mutex& mutex() {
    static std::recursive_mutex one;
    return one;
}

int current_context(Context** context) {
    if (!initialized) return kNotInitialized;
    if (stack.empty() || stack.back() == nullptr) return kInvalidContext;
    *context = stack.back();
    return failed[(*context)->device];
}

int usable() {
    Context* context;
    return current_context(&context);
}

void set_failed(int device, int status) {
    if (failed[device] == kSuccess) failed[device] = status;
}

EXPORT int cuInit(unsigned flags) {
    if (flags != 0) return kInvalidValue;
    if (num_devices() <= 0) return kNoDevice;
    for (int i = 0; i < 8; ++i) devices[i].device = i;
    initialized = true;
    return kSuccess;
}
EXPORT int cuDriverGetVersion(int* version) {
    *version = driver_version();
    return kSuccess;
}
EXPORT int cuGetErrorName(int status, const char** text) {
    switch (status) {
#define ENTRY(status, number, name, string) \
    case number:                            \
        *text = name;                       \
        return kSuccess;
        CUDA_STATUSES(ENTRY)
#undef ENTRY
    }
    return kInvalidValue;
}
EXPORT int cuGetErrorString(int status, const char** text) {
    switch (status) {
#define ENTRY(status, number, name, string) \
    case number:                            \
        *text = string;                     \
        return kSuccess;
        CUDA_STATUSES(ENTRY)
#undef ENTRY
    }
    return kInvalidValue;
}

// ---- devices and contexts ----------------------------------------------------------------------

EXPORT int cuDeviceGetCount(int* count) {
    if (!initialized) return kNotInitialized;
    *count = num_devices();
    return kSuccess;
}
EXPORT int cuDeviceGet(int* device, int ordinal) {
    if (!initialized) return kNotInitialized;
    if (ordinal < 0 || ordinal >= num_devices()) return kInvalidDevice;
    *device = ordinal;
    return kSuccess;
}
EXPORT int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
    if (device < 0 || device >= num_devices()) return kInvalidDevice;
    std::memset(uuid, 0, 16);
    uuid[0] = static_cast<unsigned char>(device + 1);
    return kSuccess;
}
EXPORT int cuDeviceGetName(char* name, int length, int) {
    std::snprintf(name, std::size_t(length), "Emulated device");
    return kSuccess;
}
EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
    if (device < 0 || device >= num_devices()) return kInvalidDevice;
    switch (attribute) {
        case 16:  // multiprocessors
            *value = setting("EMULATED_CUDA_MULTIPROCESSORS", 132);
            break;
        case 75:
            *value = capability() / 10;
            break;
        case 76:
            *value = capability() % 10;
            break;
        default:
            return kInvalidValue;  // mdcg reads no other attributes
    }
    return kSuccess;
}
EXPORT int cuDevicePrimaryCtxRetain(Context** context, int device) {
    if (!initialized) return kNotInitialized;
    if (device < 0 || device >= num_devices()) return kInvalidDevice;
    *context = &devices[device];
    return kSuccess;
}
EXPORT int cuCtxPushCurrent_v2(Context* context) {
    if (!initialized) return kNotInitialized;
    if (context == nullptr) return kInvalidContext;
    stack.push_back(context);
    return kSuccess;
}
EXPORT int cuCtxPopCurrent_v2(Context** context) {
    if (stack.empty()) return kInvalidContext;
    if (context != nullptr) *context = stack.back();
    stack.pop_back();
    return kSuccess;
}
// ---- kernels -----------------------------------------------------------------------------------

EXPORT int cuModuleLoadData(Module** module, const void* image) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    auto loaded = std::make_unique<Module>();
    if (const int status = current_context(&loaded->context)) return status;
    const std::size_t bytes = library_bytes(image);
    if (bytes == 0 || driver_version() / 1000 < kNvrtcVersion / 1000) return kInvalidImage;
    loaded->library = open_library(image, bytes);
    if (loaded->library == nullptr) return kInvalidImage;
    auto** const table =
        static_cast<emulation::Runtime**>(dlsym(loaded->library, "emulated_runtime"));
    const auto fixed =
        reinterpret_cast<char* (*)(std::size_t*)>(dlsym(loaded->library, "emulated_static_shared"));
    if (table == nullptr || fixed == nullptr) return kNoBinary;
    *table = &emulation::runtime();
    loaded->dynamic_shared = static_cast<char*>(dlsym(loaded->library, "emulated_shared"));
    loaded->static_shared = fixed(&loaded->static_bytes);
    *module = loaded.release();
    return kSuccess;
}
EXPORT int cuModuleUnload(Module* module) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    finish_all();
    delete module;
    return kSuccess;
}
EXPORT int cuModuleGetFunction(Function** function, Module* module, const char* name) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    if (const int status = usable()) return status;
    const auto found = module->functions.find(name);
    if (found != module->functions.end()) {
        *function = found->second.get();
        return kSuccess;
    }
    const auto* const kernel = static_cast<const emulation::Kernel*>(
        dlsym(module->library, (std::string(name) + "__emulated").c_str()));
    if (kernel == nullptr) return kNotFound;
    const int limit = kernel->wavefront == 64 ? kHipShared : kStaticLimit;
    auto made = std::make_unique<Function>(Function{name, module, kernel, limit});
    *function = made.get();
    module->functions.emplace(name, std::move(made));
    return kSuccess;
}
EXPORT int cuFuncSetAttribute(Function* function, int attribute, int value) {
    if (attribute != 8) return kSuccess;
    if (value < 0 || value + int(function->module->static_bytes) > shared_limit())
        return kInvalidValue;
    function->dynamic_limit = value;
    return kSuccess;
}
EXPORT int cuFuncGetAttribute(int* value, int attribute, Function* function) {
    // static shared memory, registers, local memory
    *value = attribute == 1 ? int(function->module->static_bytes) : attribute == 4 ? 32 : 0;
    return kSuccess;
}

namespace {

int launch(Function* function, emulation::Dim grid, emulation::Dim block, unsigned shared_bytes,
           Stream* stream, void** parameters, void** extra) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    Context* context = nullptr;
    if (const int status = current_context(&context)) return status;
    if (function == nullptr || function->module->context != context) return kInvalidHandle;
    if (extra != nullptr) return kNotSupported;
    const emulation::Kernel& kernel = *function->kernel;
    if (grid.x == 0 || grid.x > 2147483647u || block.x == 0) return kInvalidValue;
    if (block.x > unsigned(std::min(kernel.max_threads, 1024))) return kInvalidValue;
    if (int(shared_bytes) > function->dynamic_limit) return kInvalidValue;
    const int most = kernel.wavefront == 64 ? kHipShared : shared_limit();
    if (shared_bytes + function->module->static_bytes > std::size_t(most)) return kInvalidValue;
    if (kernel.num_parameters != 0 && parameters == nullptr) return kInvalidValue;
    std::vector<std::vector<char>> values;
    for (int i = 0; i < kernel.num_parameters; ++i) {
        const char* const p = static_cast<const char*>(parameters[i]);
        values.emplace_back(p, p + kernel.sizes[i]);
    }
    const int device = stack.back()->device;
    return enqueue(stream, kKernelNode, [=]() mutable {
        if (failed[device] != kSuccess) return failed[device];
        if (setting("EMULATED_CUDA_FAULT", -1) == device) {
            set_failed(device, kIllegalAddress);
            return int(kSuccess);
        }
        std::vector<void*> addresses;
        for (std::vector<char>& value : values) addresses.push_back(value.data());
        Module& module = *function->module;
        int status = emulation::run({function->name, &kernel, addresses.data(), grid, block,
                                     module.dynamic_shared, shared_bytes, module.static_shared,
                                     module.static_bytes});
        if (status == kSuccess) status = check_guards(("kernel " + function->name).c_str());
        // like on a device, the launch itself succeeds, and later calls fail
        if (status != kSuccess) set_failed(device, status);
        return int(kSuccess);
    });
}

}  // namespace

EXPORT int cuLaunchKernel(Function* function, unsigned blocks, unsigned blocks_y, unsigned blocks_z,
                          unsigned threads, unsigned threads_y, unsigned threads_z,
                          unsigned shared_bytes, Stream* stream, void** parameters, void** extra) {
    for (const unsigned count : {blocks_y, blocks_z, threads_y, threads_z})
        if (count != 1) return kNotSupported;
    return launch(function, {blocks}, {threads}, shared_bytes, stream, parameters, extra);
}

// CUlaunchConfig; attributes that let a kernel start early mean nothing here
struct LaunchConfig {
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    Stream* stream;
};

EXPORT int cuLaunchKernelEx(const LaunchConfig* c, Function* function, void** parameters,
                            void** extra) {
    return cuLaunchKernel(function, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1],
                          c->block[2], c->shared_bytes, c->stream, parameters, extra);
}

}  // namespace fake_cuda
