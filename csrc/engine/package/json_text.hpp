// JSON from untrusted files.
#pragma once

namespace mdcg {

// Whether objects and lists lie in each other more than `most` times. Parsing and
// printing them recurse, and would use up the stack. Text that is no JSON gets any answer.
inline bool nests_too_deep(const char* text, const char* end, int most) {
    int depth = 0;
    bool quoted = false;
    for (; text != end; ++text) {
        if (quoted) {
            if (*text == '\\' && text + 1 != end)
                ++text;
            else if (*text == '"')
                quoted = false;
        } else if (*text == '"') {
            quoted = true;
        } else if (*text == '[' || *text == '{') {
            if (++depth > most) return true;
        } else if (*text == ']' || *text == '}') {
            --depth;
        }
    }
    return false;
}

}  // namespace mdcg
