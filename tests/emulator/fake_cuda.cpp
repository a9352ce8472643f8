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

int num_devices() {
    const char* const text = std::getenv("EMULATED_CUDA_DEVICES");
    return text != nullptr ? std::min(8, std::atoi(text)) : 1;
}

int driver_version() {
    const char* const text = std::getenv("EMULATED_CUDA_VERSION");
    return text != nullptr ? std::atoi(text) : kNvrtcVersion;
}

int capability() {
    const char* const text = std::getenv("EMULATED_CUDA_CAPABILITY");
    return text != nullptr ? std::atoi(text) : 90;
}

int multiprocessors() {
    const char* const text = std::getenv("EMULATED_CUDA_MULTIPROCESSORS");
    return text != nullptr ? std::atoi(text) : 132;
}

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

const std::map<int, std::pair<const char*, const char*>> kErrors = {
    {kSuccess, {"CUDA_SUCCESS", "no error"}},
    {kInvalidValue, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
    {kOutOfMemory, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
    {kNotInitialized, {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"}},
    {kNoDevice, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
    {kInvalidDevice, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
    {kInvalidImage, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
    {kInvalidContext, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
    {kMapFailed, {"CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"}},
    {kNoBinary, {"CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for the device"}},
    {kPeersUnsupported,
     {"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
      "peer access is not supported between these two devices"}},
    {kInvalidHandle, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
    {kNotFound, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
    {kNotReady, {"CUDA_ERROR_NOT_READY", "device not ready"}},
    {kIllegalAddress, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
    {kOutOfResources,
     {"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"}},
    {kLaunchTimeout, {"CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"}},
    {kLaunchFailed, {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
    {kNotSupported, {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"}},
    {kCaptureUnsupported,
     {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"}},
    {kCaptureInvalidated,
     {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
      "operation failed due to a previous error during capture"}},
    {kCaptureUnmatched,
     {"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
      "capture was not initiated in the same stream as EndCapture"}},
    {kCaptureUnjoined,
     {"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"}},
    {kCaptureIsolation,
     {"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
      "dependency created on uncaptured work in another stream"}},
    {kCaptureImplicit,
     {"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
      "operation would make the legacy stream depend on a capturing blocking stream"}},
    {kCapturedEvent,
     {"CUDA_ERROR_CAPTURED_EVENT",
      "operation not permitted on an event last recorded in a capturing stream"}},
    {kCaptureWrongThread,
     {"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
      "attempt to terminate a thread-local capture sequence from another thread"}},
    {kGraphUpdateFailed,
     {"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graph update was not performed"}},
};

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

// Whether kernels of a device must fault. The variable may change while a program runs.
bool faults(int device) {
    const char* const text = std::getenv("EMULATED_CUDA_FAULT");
    return text != nullptr && *text != '\0' && std::atoi(text) == device;
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
    const auto found = kErrors.find(status);
    *text = found != kErrors.end() ? found->second.first : nullptr;
    return *text != nullptr ? kSuccess : kInvalidValue;
}
EXPORT int cuGetErrorString(int status, const char** text) {
    const auto found = kErrors.find(status);
    *text = found != kErrors.end() ? found->second.second : nullptr;
    return *text != nullptr ? kSuccess : kInvalidValue;
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
            *value = multiprocessors();
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
EXPORT int cuCtxSetCurrent(Context* context) {
    if (!initialized) return kNotInitialized;
    if (stack.empty()) stack.push_back(nullptr);
    stack.back() = context;
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
    auto made = std::make_unique<Function>(Function{name, module, kernel, kStaticLimit});
    *function = made.get();
    module->functions.emplace(name, std::move(made));
    return kSuccess;
}
// Finds a variable declared __constant__.
EXPORT int cuModuleGetGlobal_v2(Address* address, std::size_t* bytes, Module* module,
                                const char* name) {
    const std::lock_guard<std::recursive_mutex> lock(mutex());
    if (const int status = usable()) return status;
    const auto find = reinterpret_cast<void* (*)(std::size_t*)>(
        dlsym(module->library, (std::string(name) + "__emulated_variable").c_str()));
    if (find == nullptr) return kNotFound;
    std::size_t size = 0;
    const Address found = reinterpret_cast<Address>(find(&size));
    if (address != nullptr) *address = found;
    if (bytes != nullptr) *bytes = size;
    add_variable(found, size);
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
    switch (attribute) {
        case 0:
            *value = function->kernel->max_threads;
            break;
        case 1:
            *value = int(function->module->static_bytes);
            break;
        case 4:
            *value = 32;
            break;  // registers, which are unknown here
        case 5:
            *value = capability();
            break;
        case 6:
            *value = capability();
            break;
        case 8:
            *value = function->dynamic_limit;
            break;
        default:
            *value = 0;
    }
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
    for (const unsigned count : {grid.x, grid.y, grid.z, block.x, block.y, block.z})
        if (count == 0) return kInvalidValue;
    if (grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535) return kInvalidValue;
    if (block.x > 1024 || block.y > 1024 || block.z > 64) return kInvalidValue;
    if (block.x * block.y * block.z > unsigned(std::min(kernel.max_threads, 1024)))
        return kInvalidValue;
    if (int(shared_bytes) > function->dynamic_limit) return kInvalidValue;
    if (shared_bytes + function->module->static_bytes > std::size_t(shared_limit()))
        return kInvalidValue;
    if (kernel.num_parameters != 0 && parameters == nullptr) return kInvalidValue;
    std::vector<std::vector<char>> values;
    for (int i = 0; i < kernel.num_parameters; ++i) {
        const char* const p = static_cast<const char*>(parameters[i]);
        values.emplace_back(p, p + kernel.sizes[i]);
    }
    const int device = stack.back()->device;
    return enqueue(stream, kKernelNode, [=]() mutable {
        if (failed[device] != kSuccess) return failed[device];
        if (faults(device)) {
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

EXPORT int cuLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z,
                          unsigned shared_bytes, Stream* stream, void** parameters, void** extra) {
    return launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes,
                  stream, parameters, extra);
}

// CUlaunchAttribute and CUlaunchConfig
struct LaunchAttribute {
    int id;
    char padding[4];
    unsigned values[16];
};
struct LaunchConfig {
    emulation::Dim grid, block;
    unsigned shared_bytes;
    Stream* stream;
    const LaunchAttribute* attributes;
    unsigned num_attributes;
};

EXPORT int cuLaunchKernelEx(const LaunchConfig* config, Function* function, void** parameters,
                            void** extra) {
    for (unsigned i = 0; i < config->num_attributes; ++i) {
        const LaunchAttribute& attribute = config->attributes[i];
        const unsigned* const v = attribute.values;
        // kernels of a grid that wait for each other, clusters of blocks
        if (attribute.id == 2 && v[0] != 0) return kNotSupported;
        if (attribute.id == 4 && v[0] * v[1] * v[2] > 1) return kNotSupported;
    }
    return launch(function, config->grid, config->block, config->shared_bytes, config->stream,
                  parameters, extra);
}

}  // namespace fake_cuda
