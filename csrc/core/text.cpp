#include "core/text.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <iterator>

namespace mdcg {

std::string number_text(double value, int digits) {
    if (std::isnan(value)) return "nan";  // not "-nan"
    char text[64];
    const auto end = digits > 0
                         ? std::to_chars(text, text + 64, value, std::chars_format::general, digits)
                         : std::to_chars(text, text + 64, value);
    return {text, end.ptr};
}

namespace {

// A character and its length; 0 bytes: not UTF-8.
struct Character {
    std::uint32_t code;
    std::size_t bytes;
};

Character character_at(const std::string& text, std::size_t at) {
    const auto byte = [&](std::size_t i) -> std::uint32_t {
        return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0;
    };
    const std::uint32_t first = byte(0);
    if (first < 0x80) return {first, 1};
    const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    std::uint32_t code = first & (0xffu >> (bytes + 1));
    for (std::size_t i = 1; i < bytes; ++i) {
        if ((byte(i) & 0xc0) != 0x80) return {first, 0};
        code = code << 6 | (byte(i) & 0x3f);
    }
    static constexpr std::uint32_t least[]{0, 0, 0x80, 0x800, 0x10000};
    const bool valid = first >= 0xc0 && first < 0xf8 && code >= least[bytes] && code <= 0x10ffff &&
                       (code < 0xd800 || code > 0xdfff);
    return {valid ? code : first, valid ? bytes : 0};
}

bool is_hidden(std::uint32_t code) {
    static constexpr std::uint32_t ranges[][2]{{0x00, 0x1f},     {0x7f, 0x9f},
                                               {0x200b, 0x200f}, {0x2028, 0x202e},
                                               {0x2060, 0x206f}, {0xfeff, 0xfeff}};
    return std::any_of(std::begin(ranges), std::end(ranges),
                       [&](const auto& range) { return code >= range[0] && code <= range[1]; });
}

std::string escaped(std::uint32_t code) {
    if (code == '\t') return "\\t";
    if (code == '\n') return "\\n";
    if (code == '\r') return "\\r";
    std::string text = code < 0x100 ? "\\x" : "\\u";
    for (int shift = code < 0x100 ? 4 : 12; shift >= 0; shift -= 4)
        text += "0123456789abcdef"[code >> shift & 15];
    return text;
}

}  // namespace

std::string printable(const std::string& text) {
    if (std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; }))
        return text;
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        const auto [code, bytes] = character_at(text, at);
        out += bytes == 0 || is_hidden(code) ? escaped(code) : text.substr(at, bytes);
        at += std::max<std::size_t>(bytes, 1);
    }
    return out;
}

std::vector<std::string> split_at(const std::string& text, char separator) {
    std::vector<std::string> parts;
    for (std::size_t at = 0; at < text.size(); at += parts.back().size() + 1)
        parts.push_back(text.substr(at, std::min(text.find(separator, at), text.size()) - at));
    return parts;
}

}  // namespace mdcg
