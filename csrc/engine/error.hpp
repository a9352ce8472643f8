// What the engine throws: one printable sentence and the status of the C interface that it becomes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/text.hpp"

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

// The text of an error. Where it is about nodes, each "{}" stands for one of them, so that a host
// can put its own number of that atom there.
class Sentence {
public:
    Sentence(const char* text) : Sentence(std::string(text)) {}
    Sentence(const std::string& text, std::vector<std::int64_t> nodes = {})
        : text_(printable(text)), nodes_(std::move(nodes)) {}
    // `names`: [num_nodes] of the evaluation that failed; null: the numbers of the nodes.
    std::string text(const std::int64_t* names = nullptr) const {
        std::string out = text_;
        std::size_t at = 0;
        for (const std::int64_t node : nodes_) {
            const std::string name = std::to_string(names != nullptr ? names[node] : node);
            at = out.find("{}", at);
            out.replace(at, 2, name);
            at += name.size();
        }
        return out;
    }

    // The same with something before it, about nodes whose numbers are larger by `first`.
    Sentence moved(const std::string& before, std::int64_t first) const {
        Sentence found = *this;
        found.text_ = before + text_;
        for (std::int64_t& node : found.nodes_) node += first;
        return found;
    }

private:
    std::string text_;
    std::vector<std::int64_t> nodes_;
};

class EngineError : public std::runtime_error {
public:
    EngineError(ErrorKind kind, Sentence sentence)
        : std::runtime_error(sentence.text()), sentence(std::move(sentence)), kind_(kind) {}
    ErrorKind kind() const { return kind_; }
    Sentence sentence;

private:
    ErrorKind kind_;
};

[[noreturn]] inline void bad_argument(Sentence sentence) {
    throw EngineError(ErrorKind::argument, std::move(sentence));
}

}  // namespace mdcg
