// Instruction sets and caches of the CPU.
#pragma once

#include <cstddef>
#include <string>

namespace mdcg {

// Highest instruction set level: x86-64-v2, x86-64-v3, x86-64-v4, aarch64 or generic.
std::string instruction_set_level();

// Whether this CPU runs code of a level that instruction_set_level() can return.
bool has_instruction_set(const std::string& level);

// 12 hexadecimal digits that differ between two CPUs if code that was compiled for "native" on one
// might not run, or not run well, on the other.
std::string cpu_signature();

// Name of a compilation target: "native" (this CPU) becomes "native-x86-64-v3-" with
// cpu_signature() after it, and levels such as "x86-64-v3" stay. Throws std::invalid_argument.
std::string host_target(const std::string& level);

// Level-2 cache per core in bytes; 0 if unknown.
std::size_t l2_cache_bytes();

}  // namespace mdcg
