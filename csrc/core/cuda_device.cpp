#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <string>
#include <system_error>
#include <unordered_map>
#include <vector>

#include "core/cuda_functions.hpp"
#include "core/device.hpp"
#include "core/kernel_cache.hpp"
#include "core/shared_library.hpp"

namespace mdcg {

using cuda::ContextScope, cuda::pointer, cuda::quietly;

namespace {

// CUresult
constexpr int INVALID_VALUE = 1, NOT_INITIALIZED = 3, FUNCTION_NOT_FOUND = 500;
// CU_DEVICE_ATTRIBUTE_*, hipDeviceAttribute*
constexpr int MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76, HIP_MULTIPROCESSORS = 63;
// CU_FUNC_ATTRIBUTE_*
constexpr int STATIC_SHARED = 1, LOCAL_BYTES = 3, REGISTERS = 4, DYNAMIC_SHARED = 8;

DeviceError::Kind kind_of(int status) {
    switch (status) {
        case cuda::OUT_OF_MEMORY:
            return DeviceError::out_of_memory;
        case NOT_INITIALIZED:  // a forked process gets this
            return DeviceError::forked;
        case 100:
            return DeviceError::no_device;
        case 98:   // HIP: no code for this device
        case 200:  // invalid image
        case 209:  // no binary for this device
        case 218:  // PTX, or HIP's code, that cannot be read
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

const SharedLibrary& cuda_library() {
    static const SharedLibrary library = SharedLibrary::lasting("libcuda.so.1");
    return library;
}

// HIP of $ROCM_PATH, of the usual folder or of the loader's path, the newest of each. The order is
// that of hiprtc in mdcg/runtime/hiprtc.py.
SharedLibrary open_hip() {
    std::vector<std::string> folders = {"/opt/rocm/lib/", ""};
    if (const std::string named = variable("ROCM_PATH"); !named.empty())
        folders.insert(folders.begin(), named + "/lib/");
    std::string reason;
    for (const std::string& folder : folders)
        for (const char* suffix : {".so.7", ".so.6", ".so.5", ".so"}) {
            const std::string path = folder + "libamdhip64" + suffix;
            std::error_code ignored;
            if (!folder.empty() && !std::filesystem::exists(path, ignored)) continue;
            try {
                return SharedLibrary::lasting(path);
            } catch (const std::runtime_error& error) {
                if (reason.empty()) reason = error.what();
            }
        }
    throw std::runtime_error(reason);
}

const SharedLibrary& driver_library() {
    if (cuda::vendor() == Vendor::nvidia) return cuda_library();
    static const SharedLibrary library = open_hip();
    return library;
}

template <typename Function>
Function symbol(const char* name) {
    return reinterpret_cast<Function>(driver_library().find(name));
}

void start_with(const char* name) {
    const auto start = symbol<int (*)(unsigned)>(name);
    if (start == nullptr) cuda::refuse_without(name);
    cuda::check(start(0), name);
}

// The process that has started HIP; 0: none. A forked process inherits it, and cannot use HIP,
// which does not tell it so.
std::atomic<pid_t> hip_process{0};

void refuse_forked_process(Vendor vendor) {
    const pid_t owner = hip_process;
    if (vendor == Vendor::amd && owner != 0 && owner != getpid())
        throw DeviceError(DeviceError::forked, NOT_INITIALIZED, "HIP was started before the fork");
}

void start_driver() {
    if (cuda::vendor() == Vendor::nvidia) {
        static const bool started = (start_with("cuInit"), true);
        (void)started;
    } else {
        refuse_forked_process(Vendor::amd);
        static const bool started = (start_with("hipInit"), hip_process = getpid(), true);
        (void)started;
    }
}

int handle_of(int device) {
    refuse_forked_process(vendor_of(device));
    int handle = 0;
    cuda::cuDeviceGet(&handle, device >= FIRST_HIP_DEVICE ? device - FIRST_HIP_DEVICE : device);
    return handle;
}

int attribute(int device, int which) {
    const cuda::VendorScope scope(vendor_of(device));
    int value = 0;
    cuda::cuDeviceGetAttribute(&value, which, handle_of(device));
    return value;
}

// The number in "gfx90a:sramecc+:xnack-". NOTES: the name is looked for in the struct of all
// properties, because no other function tells it, and its place differs between versions of HIP.
int gfx_number(int device) {
    char properties[8192] = {};
    using GetProperties = int (*)(void*, int);
    auto get = symbol<GetProperties>("hipGetDevicePropertiesR0600");
    if (get == nullptr)
        get = reinterpret_cast<GetProperties>(cuda::need_function("hipGetDeviceProperties"));
    cuda::check(get(properties, handle_of(device)), "hipGetDeviceProperties");
    constexpr int NAME_BYTES = 256;  // the name of the device comes first
    const std::string prefix = "gfx";
    const char* const found = std::search(properties + NAME_BYTES, std::end(properties) - 16,
                                          prefix.begin(), prefix.end());
    const int number = static_cast<int>(std::strtol(found + prefix.size(), nullptr, 16));
    if (!is_gfx(number))
        throw DeviceError(
            DeviceError::unusable_code, INVALID_VALUE,
            "device " + device_label(device) +
                " does not name its architecture: update the driver, or use device cpu",
            true);
    return number;
}

thread_local Vendor current_vendor = Vendor::nvidia;

}  // namespace

Vendor cuda::vendor() { return current_vendor; }
cuda::VendorScope::VendorScope(Vendor vendor) : outer_(current_vendor) { current_vendor = vendor; }
cuda::VendorScope::~VendorScope() { current_vendor = outer_; }

// Contexts are retained until the process ends (as in torch), because others may use them.
cuda::ContextScope::ContextScope(int device) : vendor_(vendor_of(device)) {
    if (vendor() == Vendor::amd) {
        refuse_forked_process(vendor_of(device));
        int before = 0;
        hipGetDevice(&before);
        hipSetDevice(handle_of(device));
        outer_ = before;
        return;
    }
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
    if (vendor() == Vendor::amd) {
        hipSetDevice.status(outer_);
        return;
    }
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

namespace {
std::string driver_of(Vendor vendor) {
    return std::string(vendor == Vendor::amd ? "AMD's" : "NVIDIA's") + " driver, for " +
           driver_version_text(vendor) + ",";
}
}  // namespace

void cuda::refuse_without(const char* name) {
    throw DeviceError(DeviceError::other, FUNCTION_NOT_FOUND,
                      driver_of(vendor()) + " has no function " + name +
                          ", which mdcg needs: update the driver, or use device cpu",
                      true);
}

void cuda::check(int status, const char* what) {
    if (status == 0) return;
    const bool amd = vendor() == Vendor::amd;
    const auto describe = [&](const char* cuda_name, const char* hip_name) {
        const char* text = nullptr;
        if (amd) {
            const auto run = symbol<const char* (*)(int)>(hip_name);
            if (run != nullptr) text = run(status);
        } else {
            const auto run = symbol<int (*)(int, const char**)>(cuda_name);
            if (run != nullptr) run(status, &text);
        }
        return text != nullptr ? std::string(text) : "error " + std::to_string(status);
    };
    std::string name = what;
    if (const std::size_t end = name.rfind("_v2"); end + 3 == name.size()) name.resize(end);
    throw DeviceError(kind_of(status), status,
                      name + " failed: " + describe("cuGetErrorString", "hipGetErrorString") +
                          ", " + describe("cuGetErrorName", "hipGetErrorName"));
}

std::string device_label(int device) {
    return device >= FIRST_HIP_DEVICE ? "hip:" + std::to_string(device - FIRST_HIP_DEVICE)
                                      : "cuda:" + std::to_string(device);
}

std::string target_name(int capability) {
    if (!is_gfx(capability)) return "sm_" + std::to_string(capability);
    char text[16];
    std::snprintf(text, sizeof text, "gfx%x", static_cast<unsigned>(capability));
    return text;
}

namespace {
// HIP tells 10,000,000 * major + 100,000 * minor + patch.
int as_of_cuda(Vendor vendor, int version) {
    if (vendor == Vendor::nvidia) return version;
    return version / 10000000 * 1000 + version / 100000 % 100 * 10;
}
}  // namespace

int driver_version(Vendor vendor) {
    const cuda::VendorScope scope(vendor);
    int version = 0;
    cuda::cuDriverGetVersion(&version);
    return as_of_cuda(vendor, version);
}

int available_driver_version(Vendor vendor) {
    const cuda::VendorScope scope(vendor);
    const bool amd = vendor == Vendor::amd;
    try {
        refuse_forked_process(vendor);
        int version = 0;
        const auto run = symbol<int (*)(int*)>(amd ? "hipDriverGetVersion" : "cuDriverGetVersion");
        if (run == nullptr || run(&version) != 0) return 0;
        if (amd) hip_process = getpid();  // the call has started HIP
        return as_of_cuda(vendor, version);
    } catch (const std::runtime_error&) {
        return 0;
    }
}

std::string driver_version_text(Vendor vendor) {
    const int version = available_driver_version(vendor);
    const std::string kind = vendor == Vendor::amd ? "HIP" : "CUDA";
    if (version == 0) return "an unknown version of " + kind;
    return kind + " " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

int device_count(Vendor vendor) {
    const cuda::VendorScope scope(vendor);
    refuse_forked_process(vendor);
    int count = 0;
    cuda::cuDeviceGetCount(&count);
    return count;
}

std::string device_name(int device) {
    const cuda::VendorScope scope(vendor_of(device));
    char name[256] = {};
    cuda::cuDeviceGetName(name, sizeof name - 1, handle_of(device));
    return name;
}

int device_multiprocessors(int device) {
    const bool amd = vendor_of(device) == Vendor::amd;
    return attribute(device, amd ? HIP_MULTIPROCESSORS : MULTIPROCESSORS);
}

int compute_capability(int device) {
    if (vendor_of(device) == Vendor::nvidia)
        return 10 * attribute(device, MAJOR) + attribute(device, MINOR);
    const cuda::VendorScope scope(Vendor::amd);
    return gfx_number(device);
}

std::array<unsigned char, 16> device_uuid(int device) {
    const cuda::VendorScope scope(vendor_of(device));
    std::array<unsigned char, 16> uuid{};
    cuda::cuDeviceGetUuid(uuid.data(), handle_of(device));
    return uuid;
}

void launch_kernel(int device, std::uintptr_t function, std::int64_t blocks, int threads,
                   int shared_bytes, std::uintptr_t stream, const void* arguments, bool early,
                   const char* what) {
    const bool amd = vendor_of(device) == Vendor::amd;
    // along x; HIP counts the threads of a grid in 32 bits
    const std::int64_t most = amd ? 4294967295 / threads : 2147483647;
    if (blocks > most)
        throw DeviceError(DeviceError::other, INVALID_VALUE,
                          std::string(what) + " takes " + std::to_string(blocks) +
                              " blocks, and a grid has at most " + std::to_string(most) +
                              ": evaluate a smaller system, or use more devices",
                          true);
    const ContextScope scope(device);
    early = early && cuda::cuLaunchKernelEx.available();  // from CUDA 11.8 on
    void* parameters[1] = {const_cast<void*>(arguments)};
    cuda::LaunchAttribute attribute;
    cuda::LaunchConfig config;
    config.blocks = static_cast<unsigned>(blocks);
    config.threads = static_cast<unsigned>(threads);
    config.shared_bytes = static_cast<unsigned>(shared_bytes);
    config.stream = pointer(stream);
    config.attributes = &attribute;
    const int status =
        early ? cuda::cuLaunchKernelEx.status(&config, pointer(function), parameters, nullptr)
              : cuda::cuLaunchKernel.status(pointer(function), config.blocks, 1, 1, config.threads,
                                            1, 1, config.shared_bytes, config.stream, parameters,
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
    // HIP needs no leave for more shared memory
    if (shared_bytes > 0 && cuda::vendor() == Vendor::nvidia)
        cuda::cuFuncSetAttribute(found, DYNAMIC_SHARED, shared_bytes);
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
