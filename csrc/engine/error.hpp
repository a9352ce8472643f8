// The error of the engine: one printable sentence, and the status of the C interface.
#pragma once

#include <cmath>
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
    device = 9,  // 8 is MDCG_ERROR_INTERNAL, for other exceptions
};

// The text of an error. Each "{}" stands for the number of a node, which a host can replace by its
// own number of that atom.
class Sentence {
public:
    Sentence(const char* text) : Sentence(std::string(text)) {}
    Sentence(const std::string& text, std::vector<std::int64_t> nodes = {})
        : text_(printable(text)), nodes_(std::move(nodes)) {}
    // `names`: [num_nodes] numbers of the host for the nodes of the evaluation that failed; null:
    // the numbers of the nodes.
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

    // Returns `before` followed by this sentence, with `first` added to the numbers of nodes.
    Sentence moved(const std::string& before, std::int64_t first) const {
        Sentence found = *this;
        found.text_ = before + text_;
        for (std::int64_t& node : found.nodes_) node += first;
        return found;
    }

    bool names_nodes() const { return !nodes_.empty(); }

    // Returns this sentence about the nodes names[i] in place of i.
    Sentence named(const std::vector<std::int64_t>& names) const {
        Sentence found = *this;
        for (std::int64_t& node : found.nodes_) node = names[static_cast<std::size_t>(node)];
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

// An evaluation needs more bytes than it may take. Thrown before the lacking ones are allocated.
struct MemoryError : EngineError {
    // `device`: its name, if that is known.
    MemoryError(double needed, double allowed, const std::string& device = "")
        : EngineError(ErrorKind::memory, sizes_text(needed, allowed, device) +
                                             ": evaluate a smaller system, or use more devices, "
                                             "each with a rank of its own"),
          needed(needed),
          allowed(allowed) {}
    double needed, allowed;

    static std::string sizes_text(double needed, double allowed, const std::string& device = "") {
        return "an evaluation needs " + size_text(needed) + " of memory" +
               (device.empty() ? "" : " on " + device) + ", and may take " + size_text(allowed);
    }

    // As "12.5 GB" or "340 MB", rounded up.
    static std::string size_text(double bytes) {
        const double unit = bytes < 1e9 ? 1e6 : 1e9;
        return number_text(std::ceil(100 * bytes / unit) / 100, 6) + (unit < 1e9 ? " MB" : " GB");
    }
};

[[noreturn]] inline void bad_argument(Sentence sentence) {
    throw EngineError(ErrorKind::argument, std::move(sentence));
}

[[noreturn]] inline void charges_too_large() {
    throw EngineError(ErrorKind::numeric,
                      "the charges of the atoms are too large, or are not finite numbers: atoms "
                      "may be too close, or the model does not know such structures");
}

}  // namespace mdcg
