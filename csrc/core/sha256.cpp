#include "core/sha256.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>

namespace mdcg {

namespace {

constexpr std::uint32_t ROUND[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t rotate(std::uint32_t x, int n) { return (x >> n) | (x << (32 - n)); }

void blocks_plain(std::uint32_t* state, const unsigned char* data, std::size_t count) {
    for (; count > 0; --count) {
        std::uint32_t w[64];
        for (int i = 0; i < 16; ++i, data += 4)
            w[i] = static_cast<std::uint32_t>(data[0]) << 24 |
                   static_cast<std::uint32_t>(data[1]) << 16 |
                   static_cast<std::uint32_t>(data[2]) << 8 | static_cast<std::uint32_t>(data[3]);
        for (int i = 16; i < 64; ++i) {
            const std::uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ (a >> 3)) + w[i - 7] +
                   (rotate(b, 17) ^ rotate(b, 19) ^ (b >> 10));
        }
        std::uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        std::uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
#pragma GCC unroll 8  // no moves between the names then
        for (int i = 0; i < 64; ++i) {
            const std::uint32_t s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
            const std::uint32_t t1 = h + s1 + (g ^ (e & (f ^ g))) + ROUND[i] + w[i];
            const std::uint32_t s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
            const std::uint32_t t2 = s0 + ((a & b) | (c & (a | b)));
            h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
        }
        const std::uint32_t added[8] = {a, b, c, d, e, f, g, h};
        for (int i = 0; i < 8; ++i) state[i] += added[i];
    }
}

#if defined(__x86_64__)
// Intel's SHA extensions: two rounds an instruction, the state as {a, b, e, f} and {c, d, g, h},
// highest first.
__attribute__((target("sha,sse4.1,ssse3"))) void blocks_sha(std::uint32_t* state,
                                                            const unsigned char* data,
                                                            std::size_t count) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const auto word = [](std::uint32_t x) { return static_cast<int>(x); };
    __m128i abef = _mm_set_epi32(word(state[0]), word(state[1]), word(state[4]), word(state[5]));
    __m128i cdgh = _mm_set_epi32(word(state[2]), word(state[3]), word(state[6]), word(state[7]));
    for (; count > 0; --count, data += 64) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4];  // the last 16 words of the schedule, four groups of four
        for (int i = 0; i < 4; ++i)
            w[i] = _mm_shuffle_epi8(
                _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * i)), swap);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
            __m128i& now = w[i % 4];
            if (i >= 4) {
                const __m128i& last = w[(i + 3) % 4];
                now = _mm_sha256msg1_epu32(now, w[(i + 1) % 4]);
                now = _mm_add_epi32(now, _mm_alignr_epi8(last, w[(i + 2) % 4], 4));
                now = _mm_sha256msg2_epu32(now, last);
            }
            __m128i k = _mm_add_epi32(
                now, _mm_loadu_si128(reinterpret_cast<const __m128i*>(ROUND + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, k);
            k = _mm_shuffle_epi32(k, 0x0e);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, k);
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    const auto put = [&](__m128i from, int high, int second, int third, int low) {
        std::uint32_t words[4];
        std::memcpy(words, &from, sizeof words);
        state[high] = words[3], state[second] = words[2];
        state[third] = words[1], state[low] = words[0];
    };
    put(abef, 0, 1, 4, 5);
    put(cdgh, 2, 3, 6, 7);
}

bool has_sha() {
    unsigned a, b, c, d;
    return __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
           (b & 1u << 29) != 0;
}
#endif

}  // namespace

Sha256::Sha256(bool plain) : blocks_(blocks_plain) {
#if defined(__x86_64__)
    static const bool has = has_sha();
    if (has && !plain) blocks_ = blocks_sha;
#else
    (void)plain;
#endif
}

Sha256& Sha256::update(const void* data, std::size_t bytes) {
    const auto* p = static_cast<const unsigned char*>(data);
    bytes_ += bytes;
    while (bytes > 0) {
        if (filled_ == 0 && bytes >= 64) {
            const std::size_t count = bytes / 64;
            blocks_(state_.data(), p, count);
            p += 64 * count, bytes -= 64 * count;
            continue;
        }
        const std::size_t taken = std::min<std::size_t>(64 - filled_, bytes);
        std::memcpy(rest_.data() + filled_, p, taken);
        filled_ += taken, p += taken, bytes -= taken;
        if (filled_ == 64) {
            blocks_(state_.data(), rest_.data(), 1);
            filled_ = 0;
        }
    }
    return *this;
}

std::string Sha256::hex() {
    const std::uint64_t bits = bytes_ * 8;
    const unsigned char mark = 0x80, zero = 0;
    update(&mark, 1);
    while (filled_ != 56) update(&zero, 1);
    unsigned char length[8];
    for (int i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(bits >> (56 - 8 * i));
    update(length, 8);
    std::string text;
    for (const std::uint32_t word : state_)
        for (int shift = 28; shift >= 0; shift -= 4)
            text.push_back("0123456789abcdef"[word >> shift & 15]);
    return text;
}

std::string sha256_hex(const void* data, std::size_t bytes) {
    return Sha256().update(data, bytes).hex();
}

}  // namespace mdcg
