#include "core/cpu.hpp"

#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <stdexcept>

#include "core/files.hpp"
#include "core/sha256.hpp"
#include "core/text.hpp"

namespace mdcg {

#if defined(__x86_64__)
namespace {

// Whether the CPU has f16c, movbe and lzcnt, which __builtin_cpu_supports of older compilers does
// not know.
bool rest_of_v3() {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
    const bool first = (c & 1u << 29) != 0 && (c & 1u << 22) != 0;
    return first && __get_cpuid(0x80000001, &a, &b, &c, &d) && (c & 1u << 5) != 0;
}

}  // namespace
#endif

std::string instruction_set_level() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
    const bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && rest_of_v3();
    const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl");
    if (v4) return "x86-64-v4";
    if (v3) return "x86-64-v3";
    if (v2) return "x86-64-v2";
    return "generic";
#elif defined(__aarch64__)
    return "aarch64";
#else
    return "generic";
#endif
}

bool has_instruction_set(const std::string& level) {
    const std::string own = instruction_set_level();
    if (level == own || level == "generic") return true;
    const std::string family = "x86-64-v";
    return own.compare(0, family.size(), family) == 0 && level.size() == own.size() &&
           level.compare(0, family.size(), family) == 0 && level.back() >= '2' &&
           level.back() <= own.back();
}

std::string cpu_signature() {
    static const std::string signature = [] {
        Sha256 digest;
        digest.update(instruction_set_level());
        std::string info;
        try {
            info = read_file("/proc/cpuinfo");
        } catch (const std::runtime_error&) {  // the level alone tells CPUs apart
        }
        for (const std::string& line : split_at(info.substr(0, info.find("\n\n")), '\n'))
            for (const char* key : {"vendor_id", "cpu family", "model\t", "flags",
                                    "CPU implementer", "CPU part", "Features", "cpu\t"})
                if (line.compare(0, std::string(key).size(), key) == 0) digest.update(line + "\n");
        return digest.hex().substr(0, 12);
    }();
    return signature;
}

std::string host_target(const std::string& level) {
    if (level == "native") return "native-" + instruction_set_level() + "-" + cpu_signature();
    std::string known = "native";
#if defined(__x86_64__)
    if (level == "x86-64-v2" || level == "x86-64-v3" || level == "x86-64-v4") return level;
    known += ", x86-64-v2, x86-64-v3 or x86-64-v4";
#endif
    throw std::invalid_argument(
        "'" + level + "' is not an instruction set of this kind of CPU, expected " + known);
}

std::size_t l2_cache_bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
    const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
#else
    return 0;
#endif
}

}  // namespace mdcg
