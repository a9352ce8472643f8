// Places arrays one after the other in one piece of memory. With a null start it only counts bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mdcg {

class Layout {
public:
    // Arrays are aligned to `alignment` bytes if the start is.
    explicit Layout(char* start, std::size_t alignment = 64)
        : start_(start), alignment_(alignment) {}

    // Sets `pointer` to memory for `items` items.
    template <typename T>
    void take(T*& pointer, std::int64_t items) {
        pointer = start_ == nullptr ? nullptr : reinterpret_cast<T*>(start_ + bytes_);
        const std::size_t wanted = static_cast<std::size_t>(items) * sizeof(T);
        bytes_ += (wanted + alignment_ - 1) / alignment_ * alignment_;
    }
    std::size_t bytes() const { return bytes_; }

private:
    char* start_;
    std::size_t alignment_, bytes_ = 0;
};

}  // namespace mdcg
