// Translates CUDA text into text for a host compiler.
#pragma once

#include <string>

// Replaces inline PTX and dynamic shared memory, and adds a description of every kernel.
std::string translate(const std::string& source);
