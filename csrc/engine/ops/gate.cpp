#include "engine/ops/gate.hpp"

namespace mdcg {

GateSpec::GateSpec(const LayerEntry& given) : OpSpec(given) {
    std::vector<int> writers(out.rows.blocks.size(), 0);
    const auto function = [](const Fields& entry) {
        return Function{parse_activation(entry.text("activation", "none")),
                        entry.number("factor", 1.0)};
    };
    const auto check = [&](const Fields& entry, std::size_t from, std::size_t to) {
        const Block &a = x.rows.blocks[from], &b = out.rows.blocks[to];
        if (a.mul != b.mul || a.l != b.l)
            entry.fail("goes from " + block_text(a) + " to " + block_text(b) +
                       ", expected one shape");
        ++writers[to];
    };
    for (const Fields& entry : fields.objects("scalars")) {
        scalars.push_back(
            {block_index(entry, "in", x), block_index(entry, "out", out), function(entry)});
        check(entry, scalars.back().in, scalars.back().out);
        if (x.rows.blocks[scalars.back().in].l != 0)
            entry.fail("is a block of vectors, expected scalars");
    }
    for (const Fields& entry : fields.objects("gated")) {
        Gated g{block_index(entry, "gate", x), 0, block_index(entry, "in", x),
                block_index(entry, "out", out), function(entry)};
        check(entry, g.in, g.out);
        const Block &gate = x.rows.blocks[g.gate], &in = x.rows.blocks[g.in];
        if (gate.l != 0 || gate.mul < in.mul)
            entry.fail("has the gate " + block_text(gate) + " for " + block_text(in) +
                       ", expected scalars, at least as many");
        g.gate_offset = entry.has("gate_offset")
                            ? static_cast<int>(entry.integer("gate_offset", 0, gate.mul - in.mul))
                            : 0;
        gated.push_back(g);
    }
    for (std::size_t b = 0; b < writers.size(); ++b)
        if (writers[b] != 1)
            fields.fail("writes block " + std::to_string(b) + " of out " +
                        std::to_string(writers[b]) + " times, expected once");
}

}  // namespace mdcg
