// Programs that the library starts: compilers, and Python to make kernels.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace mdcg {

// The full path of a program; empty if there is none.
std::string find_program(const std::string& name);

// The descriptor under which a program finds the file that ProcessOptions::given_file names.
constexpr int GIVEN_FILE = 3;

struct ProcessOptions {
    std::vector<std::string> environment = {};  // "NAME=value", replaces inherited values
    int given_file = -1;                        // a descriptor that the program receives; -1: none
    int seconds = 0;                            // time limit; 0: none
    std::chrono::milliseconds grace{300};       // time to end by itself before it is killed
};

struct ProcessResult {
    int status;            // -1: ended by a signal
    std::string messages;  // output and errors
};

// Runs a program, which reads nothing, to its end. If the host interrupts, or after the time limit,
// it is ended with all processes that it has started. Throws std::runtime_error if it cannot be
// started or does not end in time; the text continues a sentence that begins with the name of the
// program.
ProcessResult run_process(const std::vector<std::string>& command,
                          const ProcessOptions& options = {});

}  // namespace mdcg
