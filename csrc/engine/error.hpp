// What the engine throws: one sentence and the status of the C interface that it becomes.
#pragma once

#include <stdexcept>
#include <string>

namespace mdcg {

// Same numbers as mdcg_status.
enum class ErrorKind {
    argument = 1,
    file = 2,
    unsupported = 3,
    compiler = 4,
    memory = 5,
    communication = 6,
    numeric = 7,
    device = 9,  // 8 are faults of this library
};

class EngineError : public std::runtime_error {
public:
    EngineError(ErrorKind kind, const std::string& sentence)
        : std::runtime_error(sentence), kind_(kind) {}
    ErrorKind kind() const { return kind_; }

private:
    ErrorKind kind_;
};

}  // namespace mdcg
