#include "translate.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <vector>

namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

std::string trim(const std::string& text) {
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    if (first == std::string::npos) return "";
    return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

// Returns the end of a comment or literal that starts at `at`, or `at` if none does.
std::size_t skip_opaque(const std::string& s, std::size_t at) {
    if (s.compare(at, 2, "//") == 0) return std::min(s.find('\n', at), s.size());
    if (s.compare(at, 2, "/*") == 0) {
        const std::size_t end = s.find("*/", at + 2);
        return end == std::string::npos ? s.size() : end + 2;
    }
    // an apostrophe between digits separates them
    if (s[at] != '"' && (s[at] != '\'' || (at > 0 && is_word(s[at - 1])))) return at;
    std::size_t end = at + 1;
    while (end < s.size() && s[end] != s[at]) end += s[end] == '\\' ? 2 : 1;
    return std::min(end + 1, s.size());
}

// Returns the index after the bracket that closes the one at `at`.
std::size_t behind_bracket(const std::string& s, std::size_t at) {
    int depth = 0;
    while (at < s.size()) {
        const std::size_t next = skip_opaque(s, at);
        if (next != at) {
            at = next;
            continue;
        }
        if (std::strchr("([{", s[at]) != nullptr) ++depth;
        if (std::strchr(")]}", s[at]) != nullptr && --depth == 0) return at + 1;
        ++at;
    }
    return s.size();
}

std::size_t skip_space(const std::string& s, std::size_t at) {
    while (at < s.size()) {
        const bool comment = s.compare(at, 2, "//") == 0 || s.compare(at, 2, "/*") == 0;
        if (comment)
            at = skip_opaque(s, at);
        else if (std::isspace(static_cast<unsigned char>(s[at])) != 0)
            ++at;
        else
            break;
    }
    return at;
}

// ---- inline PTX --------------------------------------------------------------------------------

struct Meaning {
    const char* start;  // of the opcode
    const char* function;
};

// The first that fits holds.
const Meaning kMeanings[] = {
    {"red.global.add.f32", "red_add"},
    {"red.global.add.f64", "red_add"},
    {"red.global.add.v2.f32", "red_add"},
    {"red.global.add.v4.f32", "red_add"},
    {"cp.async.ca.shared.global", "copy"},
    {"cp.async.cg.shared.global", "copy"},
    {"cp.async.commit_group", "commit"},
    {"cp.async.wait_group", "wait_copies"},
    {"griddepcontrol.", "nothing"},
    {"fence.", "nothing"},
    {"cvt.rna.tf32.f32", "to_tf32"},
    {"cvt.rn.tf32.f32", "to_tf32_even"},
    {"mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", "mma_f64"},
    {"mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64", "mma_f64_16"},
    {"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "mma_tf32"},
    {"wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32", "wgmma_tf32"},
    {"wgmma.fence", "nothing"},
    {"wgmma.commit_group", "nothing"},
    {"wgmma.wait_group", "nothing"},
};

// What an opcode does; empty: not known here.
std::string meaning_of(const std::string& opcode) {
    for (const Meaning& meaning : kMeanings)
        if (opcode.compare(0, std::strlen(meaning.start), meaning.start) == 0)
            return meaning.function;
    return "";
}

std::string quoted(const std::string& text) {
    std::string result = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') result += '\\';
        result += c == '\n' ? ' ' : c;
    }
    return result + "\"";
}

// Returns the call for one instruction, with the operands of its statement.
std::string call_of(const std::string& instruction, const std::vector<std::string>& operands) {
    const std::size_t end = std::min(instruction.find_first_of(" \t\n"), instruction.size());
    const std::string opcode = instruction.substr(0, end);
    const std::string rest = trim(instruction.substr(end));
    const std::string unknown = "static_assert(sizeof(int) == 0, " +
                                quoted("PTX that is not emulated: " + instruction) + ");";
    const std::string function = meaning_of(opcode);
    if (function == "nothing") return "";
    if (function.empty()) return unknown;
    std::vector<std::string> arguments;
    for (std::size_t at = 0; at < rest.size();) {
        const bool operand = rest[at] == '%';
        std::size_t stop = at + operand;
        while (stop < rest.size() && std::isdigit(rest[stop]) != 0) ++stop;
        if (stop > at + operand) {
            const std::string number = rest.substr(at + operand, stop - at - operand);
            if (operand && std::stoul(number) >= operands.size()) return unknown;
            arguments.push_back(operand ? "(" + operands[std::stoul(number)] + ")" : number);
            at = stop;
        } else if (std::strchr("[]{}, \t\n", rest[at]) != nullptr) {
            ++at;
        } else {
            return unknown;  // registers, predicates, sums of addresses
        }
    }
    std::string text = "emulated_ptx::" + function + "(";
    for (std::size_t i = 0; i < arguments.size(); ++i) text += (i > 0 ? ", " : "") + arguments[i];
    return text + ");";
}

// Translates a statement asm("...", operands); `at` is after the word.
std::string assembly(const std::string& s, std::size_t at, std::size_t* end) {
    while (s[at] != '(') ++at;
    *end = behind_bracket(s, at);
    std::string text;
    std::vector<std::string> operands;
    int section = 0;
    for (++at; at + 1 < *end;) {
        if (s[at] == '"') {
            const std::size_t next = skip_opaque(s, at);
            if (section == 0) {
                for (std::size_t i = at + 1; i + 1 < next; ++i) {
                    if (s[i] == '\\' && i + 2 < next) {
                        ++i;
                        text += s[i] == 'n' || s[i] == 't' ? ' ' : s[i];
                    } else {
                        text += s[i];
                    }
                }
            }
            at = next;
        } else if (s[at] == ':') {
            ++section;
            ++at;
        } else if (s[at] == '(') {
            const std::size_t next = behind_bracket(s, at);
            operands.push_back(s.substr(at + 1, next - at - 2));
            at = next;
        } else {
            ++at;
        }
    }
    std::string result = "{ ";
    for (std::size_t start = 0; start < text.size();) {
        const std::size_t stop = std::min(text.find(';', start), text.size());
        const std::string instruction = trim(text.substr(start, stop - start));
        if (!instruction.empty()) result += call_of(instruction, operands);
        start = stop + 1;
    }
    return result + " }";
}

// ---- kernels and shared memory -----------------------------------------------------------------

struct Found {
    std::string name, bound;
};

// Returns the kernel that is declared after the word __global__.
Found kernel_at(const std::string& s, std::size_t at) {
    Found found;
    for (;;) {
        at = skip_space(s, at);
        if (at >= s.size() || !is_word(s[at])) return {};
        std::size_t stop = at;
        while (stop < s.size() && is_word(s[stop])) ++stop;
        const std::string word = s.substr(at, stop - at);
        at = skip_space(s, stop);
        if (at >= s.size() || s[at] != '(') continue;
        const std::size_t end = behind_bracket(s, at);
        if (word == "__launch_bounds__") {
            std::size_t comma = at + 1;
            while (comma < end - 1 && s[comma] != ',')
                comma = s[comma] == '(' ? behind_bracket(s, comma) : comma + 1;
            found.bound = s.substr(at + 1, comma - at - 1);
        } else if (word.compare(0, 2, "__") != 0) {
            found.name = word;
            const std::size_t body = skip_space(s, end);
            return body < s.size() && s[body] == '{' ? found : Found{};
        }
        at = end;
    }
}

// extern __shared__ TYPE NAME[]; `at` is behind the words.
std::string dynamic_memory(const std::string& s, std::size_t at, std::size_t* end) {
    const std::size_t stop = s.find(';', at);
    const std::string declaration = s.substr(at, stop - at);
    *end = stop + 1;
    const std::string head = trim(declaration.substr(0, declaration.rfind('[')));
    std::size_t name = head.size();
    while (name > 0 && is_word(head[name - 1])) --name;
    const std::string type = head.substr(0, name);
    return type + "* const " + head.substr(name) + " = (" + type + "*)emulated_shared;";
}

bool word_at(const std::string& s, std::size_t at, const char* word) {
    const std::size_t length = std::strlen(word);
    return s.compare(at, length, word) == 0 && (at == 0 || !is_word(s[at - 1])) &&
           (at + length >= s.size() || !is_word(s[at + length]));
}

std::size_t behind_words(const std::string& s, std::size_t at, const char* first,
                         const char* second) {
    if (!word_at(s, at, first)) return 0;
    const std::size_t next = skip_space(s, at + std::strlen(first));
    return next < s.size() && word_at(s, next, second) ? next + std::strlen(second) : 0;
}

}  // namespace

std::string translate(const std::string& source, bool hip) {
    // An anonymous namespace: names of several programs cannot collide, and static memory of
    // templates may have a section.
    std::string text = "namespace {\n#line 1 \"kernel.cu\"\n", kernels;
    bool external = false;
    for (std::size_t at = 0; at < source.size();) {
        const bool boundary = at == 0 || !is_word(source[at - 1]);
        std::size_t end = skip_opaque(source, at);
        if (end != at) {
            if (source.compare(at, 3, "\"C\"") == 0) external = true;
            text.append(source, at, end - at);
        } else if (!boundary || !is_word(source[at])) {
            if (source[at] == ';' || source[at] == '}') external = false;
            text += source[end++];
        } else if (word_at(source, at, "asm")) {
            const std::string statement = assembly(source, at, &end);
            if (end < source.size() && source[skip_space(source, end)] == ';')
                end = skip_space(source, end) + 1;
            text += statement;
        } else if (const std::size_t behind = behind_words(source, at, "extern", "__shared__")) {
            text += dynamic_memory(source, behind, &end);
        } else if (word_at(source, at, "__global__") && external) {
            const Found found = kernel_at(source, at + 10);
            if (!found.name.empty())
                kernels +=
                    "extern \"C\" __attribute__((visibility(\"default"
                    "\"))) const emulation::Kernel " +
                    found.name + "__emulated = {emulation::call<&" + found.name +
                    ">, decltype(emulation::signature(&" + found.name +
                    "))::sizes, emulation::num_parameters<&" + found.name + ">(), " +
                    (found.bound.empty() ? "1024" : "int(" + found.bound + ")") +
                    (hip ? " * MDCG_SPREAD, 64};\n" : ", 32};\n");
            external = false;
            end = at + 10;
            text += "__global__";
        } else {
            end = at;
            while (end < source.size() && is_word(source[end])) ++end;
            text.append(source, at, end - at);
        }
        at = end;
    }
    return text + "\n}  // namespace\n" + kernels;
}
