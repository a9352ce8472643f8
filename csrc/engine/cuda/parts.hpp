// Parts of one piece of device memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mdcg {

// Each aligned to 256 bytes.
class CudaParts {
public:
    // With a null start, `end` counts the bytes and the parts are not to be used.
    explicit CudaParts(char* start) : start_(reinterpret_cast<std::uintptr_t>(start)) {}
    template <typename N>
    void take(N*& part, std::int64_t items) {
        part = reinterpret_cast<N*>(start_ + end_);
        end_ += (static_cast<std::size_t>(items) * sizeof(N) + 255) / 256 * 256;
    }
    std::size_t end() const { return end_; }

private:
    std::uintptr_t start_;
    std::size_t end_ = 0;
};

}  // namespace mdcg
