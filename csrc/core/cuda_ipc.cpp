#include "core/cuda_ipc.hpp"

#include <cstddef>
#include <cstring>
#include <exception>

namespace mdcg {

namespace {

constexpr unsigned LAZY_PEER_ACCESS = 1;  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

struct DriverHandle {  // passed by value
    unsigned char bytes[64];
};
static_assert(sizeof(DriverHandle) == sizeof(SharedMemoryHandle::driver));

}  // namespace

SharedMemoryHandle share(const CudaMemory& memory, int device) {
    const CudaDriver& driver = CudaDriver::get();
    const CudaScope scope(device);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    std::uint64_t base = 0;
    std::size_t bytes = 0;
    driver.check(driver.symbol<int (*)(std::uint64_t*, std::size_t*, std::uint64_t)>(
                     "cuMemGetAddressRange_v2")(&base, &bytes, address),
                 "cuMemGetAddressRange");
    DriverHandle found;
    driver.check(
        driver.symbol<int (*)(DriverHandle*, std::uint64_t)>("cuIpcGetMemHandle")(&found, address),
        "cuIpcGetMemHandle");
    SharedMemoryHandle handle;
    std::memcpy(handle.driver, found.bytes, sizeof found.bytes);
    handle.offset = address - base;
    return handle;
}

PeerMemory::PeerMemory(int device, const SharedMemoryHandle& handle)
    : device_(device), offset_(handle.offset) {
    const CudaDriver& driver = CudaDriver::get();
    const CudaScope scope(device);
    DriverHandle wanted;
    std::memcpy(wanted.bytes, handle.driver, sizeof wanted.bytes);
    driver.check(driver.symbol<int (*)(std::uint64_t*, DriverHandle, unsigned)>(
                     "cuIpcOpenMemHandle_v2")(&base_, wanted, LAZY_PEER_ACCESS),
                 "cuIpcOpenMemHandle");
}

PeerMemory::~PeerMemory() {
    // no exceptions here: at the end of a process the driver may be gone already
    try {
        const CudaScope scope(device_);
        CudaDriver::get().symbol<int (*)(std::uint64_t)>("cuIpcCloseMemHandle")(base_);
    } catch (const std::exception&) {
    }
}

}  // namespace mdcg
