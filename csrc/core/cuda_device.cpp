#include <mutex>
#include <string>
#include <unordered_map>

#include "core/cuda_functions.hpp"
#include "core/device.hpp"
#include "core/shared_library.hpp"

namespace mdcg {

using cuda::ContextScope, cuda::pointer, cuda::quietly;

namespace {

// CUresult
constexpr int INVALID_VALUE = 1, FUNCTION_NOT_FOUND = 500;
// CU_DEVICE_ATTRIBUTE_*
constexpr int MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76;
// CU_FUNC_ATTRIBUTE_*
constexpr int STATIC_SHARED = 1, LOCAL_BYTES = 3, REGISTERS = 4, DYNAMIC_SHARED = 8;

DeviceError::Kind kind_of(int status) {
    switch (status) {
        case cuda::OUT_OF_MEMORY:
            return DeviceError::out_of_memory;
        case 3:  // not initialized: a forked process gets this
            return DeviceError::forked;
        case 100:
            return DeviceError::no_device;
        case 200:  // invalid image
        case 209:  // no binary for this device
        case 222:  // a later version of PTX
        case FUNCTION_NOT_FOUND:
            return DeviceError::unusable_code;
        case 701:
            return DeviceError::too_many_resources;
        case 214:  // memory that cannot be corrected
        case 220:  // NVLink
        case 700:  // illegal address
        case 702:  // timeout
        case 709:  // the context was destroyed
        case 710:  // assertion
            return DeviceError::lost;
        default:  // 714 to 719: kernels that were stopped
            return status >= 714 && status <= 719 ? DeviceError::lost : DeviceError::other;
    }
}

const SharedLibrary& driver_library() {
    static const SharedLibrary library = SharedLibrary::lasting("libcuda.so.1");
    return library;
}

template <typename Function>
Function symbol(const char* name) {
    return reinterpret_cast<Function>(driver_library().find(name));
}

void start_driver() {
    static const bool started = [] {
        const auto start = symbol<int (*)(unsigned)>("cuInit");
        if (start == nullptr) cuda::refuse_without("cuInit");
        cuda::check(start(0), "cuInit");
        return true;
    }();
    (void)started;
}

int handle_of(int device) {
    int handle = 0;
    cuda::cuDeviceGet(&handle, device);
    return handle;
}

int attribute(int device, int which) {
    int value = 0;
    cuda::cuDeviceGetAttribute(&value, which, handle_of(device));
    return value;
}

}  // namespace

// Contexts are retained until the process ends (as in torch), because others may use them.
cuda::ContextScope::ContextScope(int device) {
    static std::mutex mutex;
    static std::unordered_map<int, void*> contexts;
    cuCtxPopCurrent.need();  // the destructor must not find it missing
    void* context = nullptr;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        void*& kept = contexts[device];
        if (kept == nullptr) cuDevicePrimaryCtxRetain(&kept, handle_of(device));
        context = kept;
    }
    cuCtxPushCurrent(context);
}

cuda::ContextScope::~ContextScope() {
    void* context = nullptr;
    cuCtxPopCurrent.status(&context);
}

void* cuda::find_function(const char* name) {
    start_driver();
    return driver_library().find(name);
}

void* cuda::need_function(const char* name) {
    void* const found = find_function(name);
    if (found == nullptr) refuse_without(name);
    return found;
}

void cuda::refuse_without(const char* name) {
    throw DeviceError(DeviceError::other, FUNCTION_NOT_FOUND,
                      "NVIDIA's driver, for " + driver_version_text() + ", has no function " +
                          name + ", which mdcg needs: update the driver, or use device cpu",
                      true);
}

void cuda::check(int status, const char* what) {
    if (status == 0) return;
    const auto describe = [&](const char* function) {
        const char* text = nullptr;
        const auto run = symbol<int (*)(int, const char**)>(function);
        if (run != nullptr) run(status, &text);
        return text != nullptr ? std::string(text) : "error " + std::to_string(status);
    };
    std::string name = what;
    if (const std::size_t end = name.rfind("_v2"); end + 3 == name.size()) name.resize(end);
    throw DeviceError(
        kind_of(status), status,
        name + " failed: " + describe("cuGetErrorString") + ", " + describe("cuGetErrorName"));
}

int driver_version() {
    int version = 0;
    cuda::cuDriverGetVersion(&version);
    return version;
}

int available_driver_version() {
    try {
        int version = 0;
        const auto run = symbol<int (*)(int*)>("cuDriverGetVersion");
        return run != nullptr && run(&version) == 0 ? version : 0;
    } catch (const std::runtime_error&) {
        return 0;
    }
}

std::string driver_version_text() {
    const int version = available_driver_version();
    if (version == 0) return "an unknown version of CUDA";
    return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

int device_count() {
    int count = 0;
    cuda::cuDeviceGetCount(&count);
    return count;
}

std::string device_name(int device) {
    char name[256] = {};
    cuda::cuDeviceGetName(name, sizeof name - 1, handle_of(device));
    return name;
}

int device_multiprocessors(int device) { return attribute(device, MULTIPROCESSORS); }

int compute_capability(int device) {
    return 10 * attribute(device, MAJOR) + attribute(device, MINOR);
}

std::array<unsigned char, 16> device_uuid(int device) {
    std::array<unsigned char, 16> uuid{};
    cuda::cuDeviceGetUuid(uuid.data(), handle_of(device));
    return uuid;
}

void launch_kernel(int device, std::uintptr_t function, std::int64_t blocks, int threads,
                   int shared_bytes, std::uintptr_t stream, const void* arguments, bool early,
                   const char* what) {
    constexpr std::int64_t MOST_BLOCKS = 2147483647;  // along x
    if (blocks > MOST_BLOCKS)
        throw DeviceError(DeviceError::other, INVALID_VALUE,
                          std::string(what) + " takes " + std::to_string(blocks) +
                              " blocks, and a grid has at most " + std::to_string(MOST_BLOCKS) +
                              ": evaluate a smaller system, or use more devices",
                          true);
    const ContextScope scope(device);
    static const bool starts_early = cuda::cuLaunchKernelEx.available();  // from CUDA 11.8 on
    void* parameters[1] = {const_cast<void*>(arguments)};
    cuda::LaunchAttribute attribute;
    cuda::LaunchConfig config;
    config.blocks = static_cast<unsigned>(blocks);
    config.threads = static_cast<unsigned>(threads);
    config.shared_bytes = static_cast<unsigned>(shared_bytes);
    config.stream = pointer(stream);
    config.attributes = &attribute;
    const int status =
        early && starts_early
            ? cuda::cuLaunchKernelEx.status(&config, pointer(function), parameters, nullptr)
            : cuda::cuLaunchKernel.status(pointer(function), config.blocks, 1, 1, config.threads, 1,
                                          1, config.shared_bytes, config.stream, parameters,
                                          nullptr);
    cuda::check(status, what);
}

DeviceModule::DeviceModule(int device, const std::string& code) : device_(device) {
    const ContextScope scope(device);
    cuda::cuModuleLoadData(&module_, code.data());
}

DeviceModule::~DeviceModule() {
    quietly(device_, [&] { cuda::cuModuleUnload(module_); });
}

std::uintptr_t DeviceModule::function(const std::string& name, int shared_bytes) const {
    const ContextScope scope(device_);
    void* found = nullptr;
    cuda::cuModuleGetFunction(&found, module_, name.c_str());
    if (shared_bytes > 0) cuda::cuFuncSetAttribute(found, DYNAMIC_SHARED, shared_bytes);
    return reinterpret_cast<std::uintptr_t>(found);
}

std::array<int, 3> DeviceModule::resources(std::uintptr_t function) const {
    const ContextScope scope(device_);
    std::array<int, 3> values{};
    const int names[3] = {REGISTERS, LOCAL_BYTES, STATIC_SHARED};
    for (std::size_t i = 0; i < 3; ++i)
        cuda::cuFuncGetAttribute(&values[i], names[i], pointer(function));
    return values;
}

void DeviceModule::launch(std::uintptr_t function, std::int64_t blocks, int threads,
                          int shared_bytes, std::uintptr_t stream,
                          const std::vector<std::int64_t>& arguments, bool early) const {
    if (blocks <= 0) return;
    launch_kernel(device_, function, blocks, threads, shared_bytes, stream, arguments.data(), early,
                  early ? "cuLaunchKernelEx" : "cuLaunchKernel");
}

}  // namespace mdcg
