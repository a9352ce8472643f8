// SHA-256 (FIPS 180-4), for keys and digests of kernels and files. It uses the CPU's SHA
// instructions if there are any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace mdcg {

class Sha256 {
public:
    // `plain`: without special instructions, for tests.
    explicit Sha256(bool plain = false);
    Sha256& update(const void* data, std::size_t bytes);
    Sha256& update(const std::string& text) { return update(text.data(), text.size()); }
    // 64 hexadecimal digits; the object cannot be used afterwards.
    std::string hex();

private:
    void (*blocks_)(std::uint32_t* state, const unsigned char* data, std::size_t count);
    std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                           0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<unsigned char, 64> rest_;
    std::size_t filled_ = 0;
    std::uint64_t bytes_ = 0;
};

std::string sha256_hex(const void* data, std::size_t bytes);

}  // namespace mdcg
