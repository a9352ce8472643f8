// Translates CUDA text into text for a host compiler.
#pragma once

#include <string>

// Replaces inline PTX and dynamic shared memory, and adds a description of every kernel.
// `hip`: of a program that begins with csrc/kernels/hip.cuh.
std::string translate(const std::string& source, bool hip);
