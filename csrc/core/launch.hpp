// Runs a generated host kernel: independent tasks on OpenMP threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mdcg {

// arg: the values listed in the kernel's header comment; scratch: private to the thread, 64-byte
// aligned.
using HostKernel = void (*)(const std::int64_t* arg, std::int64_t task, char* scratch);

// Runs tasks round_ptr[r] .. round_ptr[r+1]-1 of round r in any order, round after round.
void launch_rounds(HostKernel kernel, const std::int64_t* arg, const std::int64_t* round_ptr,
                   std::int64_t num_rounds, int num_threads, std::size_t scratch_bytes);

}  // namespace mdcg
