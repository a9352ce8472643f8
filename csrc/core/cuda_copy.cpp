// Copies between the host and addresses on a device.
#include "core/cuda_memory.hpp"

namespace mdcg {

void copy_to_host(void* target, const void* source, std::size_t bytes, const CudaStream& stream) {
    if (bytes == 0) return;
    const CudaScope scope(stream.device());
    const CudaDriver& driver = CudaDriver::get();
    static const auto copy =
        driver.symbol<int (*)(void*, std::uint64_t, std::size_t, std::uintptr_t)>(
            "cuMemcpyDtoHAsync_v2");
    driver.check(copy(target, reinterpret_cast<std::uintptr_t>(source), bytes, stream.handle()),
                 "cuMemcpyDtoHAsync");
}

void copy_to_device(void* target, const void* source, std::size_t bytes, const CudaStream& stream) {
    if (bytes == 0) return;
    const CudaScope scope(stream.device());
    const CudaDriver& driver = CudaDriver::get();
    static const auto copy =
        driver.symbol<int (*)(std::uint64_t, const void*, std::size_t, std::uintptr_t)>(
            "cuMemcpyHtoDAsync_v2");
    driver.check(copy(reinterpret_cast<std::uintptr_t>(target), source, bytes, stream.handle()),
                 "cuMemcpyHtoDAsync");
}

}  // namespace mdcg
