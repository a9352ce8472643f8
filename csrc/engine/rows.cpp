#include "engine/rows.hpp"

#include <cctype>
#include <stdexcept>

#include "engine/package/limits.hpp"

namespace mdcg {

Rows Rows::parse(const std::string& irreps, int align) {
    const auto fail = [&irreps]() {
        throw std::invalid_argument("irreps \"" + irreps.substr(0, 80) +
                                    "\", expected such as \"128x0e+128x1o\"");
    };
    Rows rows;
    std::size_t i = 0;
    const auto number = [&](int limit) {
        if (i >= irreps.size() || !std::isdigit(static_cast<unsigned char>(irreps[i]))) fail();
        long value = 0;
        while (i < irreps.size() && std::isdigit(static_cast<unsigned char>(irreps[i]))) {
            value = 10 * value + (irreps[i++] - '0');
            if (value > limit) fail();
        }
        return static_cast<int>(value);
    };
    while (true) {
        Block block{};
        block.mul = number(limits::MAX_MULTIPLICITY);
        if (block.mul == 0 || i >= irreps.size() || irreps[i++] != 'x') fail();
        block.l = number(limits::MAX_DEGREE);
        if (i >= irreps.size() || (irreps[i] != 'e' && irreps[i] != 'o')) fail();
        block.parity = irreps[i++] == 'e' ? 1 : -1;
        block.offset = rows.width;
        block.stride = (block.mul + align - 1) / align * align;
        rows.width += block.dim() * block.stride;
        rows.features += block.dim() * block.mul;
        if (rows.width > limits::MAX_ROW_ITEMS) fail();
        rows.blocks.push_back(block);
        if (i == irreps.size()) return rows;
        if (irreps[i++] != '+') fail();
    }
}

}  // namespace mdcg
