#include "core/cuda_driver.hpp"

#include <mutex>
#include <unordered_map>

namespace mdcg {

namespace {

using Context = void*;

constexpr int kMajor = 75, kMinor = 76;         // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
constexpr int kRegisters = 4, kLocalBytes = 3;  // CU_FUNC_ATTRIBUTE_*
constexpr int kStaticShared = 1, kDynamicShared = 8;

int device_handle(const CudaDriver& driver, int device) {
    int handle = 0;
    driver.check(driver.symbol<int (*)(int*, int)>("cuDeviceGet")(&handle, device), "cuDeviceGet");
    return handle;
}

// CUlaunchAttribute: programmatic stream serialization, allowed.
struct alignas(8) LaunchAttribute {
    int id = 6;
    char padding[4] = {};
    int allowed = 1;
    char rest[60] = {};
};
static_assert(sizeof(LaunchAttribute) == 72, "as in cuda.h");

// CUlaunchConfig
struct LaunchConfig {
    unsigned blocks = 1, blocks_y = 1, blocks_z = 1;
    unsigned threads = 1, threads_y = 1, threads_z = 1;
    unsigned shared_bytes = 0;
    void* stream = nullptr;
    LaunchAttribute* attributes = nullptr;
    unsigned num_attributes = 1;
};

using ExtendedLaunch = int (*)(const LaunchConfig*, void*, void**, void**);
using PopContext = int (*)(Context*);

PopContext pop_context() {
    static const auto found = CudaDriver::get().symbol<PopContext>("cuCtxPopCurrent_v2");
    return found;
}

// Contexts stay retained for the life of the process, as torch keeps them too: others may use them.
Context primary_context(int device) {
    static std::mutex mutex;
    static std::unordered_map<int, Context> contexts;
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = contexts.find(device);
    if (found != contexts.end()) return found->second;
    const CudaDriver& driver = CudaDriver::get();
    Context context = nullptr;
    driver.check(driver.symbol<int (*)(Context*, int)>("cuDevicePrimaryCtxRetain")(
                     &context, device_handle(driver, device)),
                 "cuDevicePrimaryCtxRetain");
    contexts.emplace(device, context);
    return context;
}

}  // namespace

CudaDriver::CudaDriver() : library_(SharedLibrary::lasting("libcuda.so.1")) {
    check(symbol<int (*)(unsigned)>("cuInit")(0), "cuInit");
}

const CudaDriver& CudaDriver::get() {
    static const CudaDriver driver;
    return driver;
}

void* CudaDriver::address(const char* name) const {
    void* const found = library_.find(name);
    if (found == nullptr)
        throw CudaError(CUDA_NOT_FOUND,
                        "NVIDIA's driver, for " + version_text() + ", has no function " + name +
                            ", which mdcg needs: update the driver, or use device cpu",
                        true);
    return found;
}

void CudaDriver::check(int status, const char* what) const {
    if (status == 0) return;
    const auto describe = [&](const char* function) {
        const char* text = nullptr;
        const auto run = find<int (*)(int, const char**)>(function);
        if (run != nullptr) run(status, &text);
        return text != nullptr ? std::string(text) : "error " + std::to_string(status);
    };
    throw CudaError(status, std::string(what) + " failed: " + describe("cuGetErrorString") + ", " +
                                describe("cuGetErrorName"));
}

int CudaDriver::version() const {
    int version = 0;
    check(symbol<int (*)(int*)>("cuDriverGetVersion")(&version), "cuDriverGetVersion");
    return version;
}

int CudaDriver::version_there() {
    try {
        static const SharedLibrary library = SharedLibrary::lasting("libcuda.so.1");
        int version = 0;
        const auto run = reinterpret_cast<int (*)(int*)>(library.find("cuDriverGetVersion"));
        return run != nullptr && run(&version) == 0 ? version : 0;
    } catch (const std::runtime_error&) {
        return 0;
    }
}

std::string CudaDriver::version_text() const {
    int version = 0;
    const auto run = find<int (*)(int*)>("cuDriverGetVersion");
    if (run == nullptr || run(&version) != 0) return "an unknown version of CUDA";
    return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

int CudaDriver::device_count() const {
    int count = 0;
    check(symbol<int (*)(int*)>("cuDeviceGetCount")(&count), "cuDeviceGetCount");
    return count;
}

std::string CudaDriver::device_name(int device) const {
    char name[256] = {};
    check(symbol<int (*)(char*, int, int)>("cuDeviceGetName")(name, sizeof name - 1,
                                                              device_handle(*this, device)),
          "cuDeviceGetName");
    return name;
}

std::array<unsigned char, 16> CudaDriver::device_uuid(int device) const {
    std::array<unsigned char, 16> uuid{};
    check(symbol<int (*)(unsigned char*, int)>("cuDeviceGetUuid_v2")(uuid.data(),
                                                                     device_handle(*this, device)),
          "cuDeviceGetUuid");
    return uuid;
}

int CudaDriver::compute_capability(int device) const {
    const auto attribute = symbol<int (*)(int*, int, int)>("cuDeviceGetAttribute");
    const int handle = device_handle(*this, device);
    int major = 0, minor = 0;
    check(attribute(&major, kMajor, handle), "cuDeviceGetAttribute");
    check(attribute(&minor, kMinor, handle), "cuDeviceGetAttribute");
    return 10 * major + minor;
}

CudaScope::CudaScope(int device) {
    const CudaDriver& driver = CudaDriver::get();
    static const auto push = driver.symbol<int (*)(Context)>("cuCtxPushCurrent_v2");
    pop_context();  // the destructor must not find it missing
    driver.check(push(primary_context(device)), "cuCtxPushCurrent");
}

CudaScope::~CudaScope() {
    Context context = nullptr;
    pop_context()(&context);
}

CudaModule::CudaModule(int device, const std::string& cubin) : device_(device) {
    const CudaScope scope(device);
    const CudaDriver& driver = CudaDriver::get();
    driver.check(
        driver.symbol<int (*)(void**, const void*)>("cuModuleLoadData")(&module_, cubin.data()),
        "cuModuleLoadData");
}

CudaModule::~CudaModule() {
    // no exceptions here: at the end of a process the driver may be gone already
    try {
        const CudaScope scope(device_);
        CudaDriver::get().symbol<int (*)(void*)>("cuModuleUnload")(module_);
    } catch (const std::exception&) {
    }
}

std::uintptr_t CudaModule::function(const std::string& name, int shared_bytes) const {
    const CudaScope scope(device_);
    const CudaDriver& driver = CudaDriver::get();
    void* found = nullptr;
    driver.check(driver.symbol<int (*)(void**, void*, const char*)>("cuModuleGetFunction")(
                     &found, module_, name.c_str()),
                 "cuModuleGetFunction");
    if (shared_bytes > 0)
        driver.check(driver.symbol<int (*)(void*, int, int)>("cuFuncSetAttribute")(
                         found, kDynamicShared, shared_bytes),
                     "cuFuncSetAttribute");
    return reinterpret_cast<std::uintptr_t>(found);
}

std::array<int, 3> CudaModule::resources(std::uintptr_t function) const {
    const CudaScope scope(device_);
    const CudaDriver& driver = CudaDriver::get();
    const auto attribute = driver.symbol<int (*)(int*, int, void*)>("cuFuncGetAttribute");
    std::array<int, 3> values{};
    const int names[3] = {kRegisters, kLocalBytes, kStaticShared};
    for (std::size_t i = 0; i < 3; ++i)
        driver.check(attribute(&values[i], names[i], reinterpret_cast<void*>(function)),
                     "cuFuncGetAttribute");
    return values;
}

void launch_kernel(std::uintptr_t function, std::int64_t blocks, int threads, int shared_bytes,
                   std::uintptr_t stream, const void* arguments, bool early, const char* what) {
    constexpr std::int64_t MOST_BLOCKS = 2147483647;  // along x
    if (blocks > MOST_BLOCKS)
        throw CudaError(CUDA_INVALID_VALUE,
                        std::string(what) + " takes " + std::to_string(blocks) +
                            " blocks, and a grid has at most " + std::to_string(MOST_BLOCKS) +
                            ": evaluate a smaller system, or use more devices",
                        true);
    const CudaDriver& driver = CudaDriver::get();
    // drivers before CUDA 11.8 have none
    static const auto run_early = driver.find<ExtendedLaunch>("cuLaunchKernelEx");
    void* parameters[1] = {const_cast<void*>(arguments)};
    if (early && run_early != nullptr) {
        LaunchAttribute attribute;
        LaunchConfig config;
        config.blocks = static_cast<unsigned>(blocks);
        config.threads = static_cast<unsigned>(threads);
        config.shared_bytes = static_cast<unsigned>(shared_bytes);
        config.stream = reinterpret_cast<void*>(stream);
        config.attributes = &attribute;
        const int status =
            run_early(&config, reinterpret_cast<void*>(function), parameters, nullptr);
        if (status != 0) driver.check(status, what);
        return;
    }
    static const auto run =
        driver.symbol<int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned, void*, void**, void**)>("cuLaunchKernel");
    const int status =
        run(reinterpret_cast<void*>(function), static_cast<unsigned>(blocks), 1, 1,
            static_cast<unsigned>(threads), 1, 1, static_cast<unsigned>(shared_bytes),
            reinterpret_cast<void*>(stream), parameters, nullptr);
    if (status != 0) driver.check(status, what);
}

void CudaModule::launch(std::uintptr_t function, std::int64_t blocks, int threads, int shared_bytes,
                        std::uintptr_t stream, const std::vector<std::int64_t>& arguments,
                        bool early) const {
    if (blocks <= 0) return;
    const CudaScope scope(device_);
    launch_kernel(function, blocks, threads, shared_bytes, stream, arguments.data(), early,
                  early ? "cuLaunchKernelEx" : "cuLaunchKernel");
}

}  // namespace mdcg
