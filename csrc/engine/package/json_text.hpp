// JSON from untrusted files.
#pragma once

namespace mdcg {

// Whether objects and lists are nested more than `most` deep. Parsing and printing them is
// recursive, and would use up the stack. For text that is not JSON, the answer has no meaning.
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
