// Arrays side by side in one piece of memory; with a null start only their size is counted.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mdcg {

class Layout {
public:
    explicit Layout(char* start) : start_(start) {}

    // Sets `pointer` to `items` items, aligned to 64 bytes.
    template <typename T>
    void take(T*& pointer, std::int64_t items) {
        pointer = start_ == nullptr ? nullptr : reinterpret_cast<T*>(start_ + bytes_);
        bytes_ += (static_cast<std::size_t>(items) * sizeof(T) + 63) / 64 * 64;
    }
    std::size_t bytes() const { return bytes_; }

private:
    char* start_;
    std::size_t bytes_ = 0;
};

}  // namespace mdcg
