// Gates: activations of scalars, and other blocks times activations of scalars.
#include "core/integers.hpp"
#include "engine/ops/node/row_op.hpp"

namespace mdcg {

namespace {

// The blocks of a row. For x, `uses` gets the numbers of the entries that read each block.
std::vector<GateBlock> blocks_of(const Rows& rows, const std::vector<GateEntry>& entries,
                                 std::vector<std::int32_t>* uses) {
    std::vector<GateBlock> blocks;
    for (const Block& b : rows.blocks) {
        const std::int32_t number = narrow(blocks.size());
        blocks.push_back({b.offset, b.stride, b.mul, b.dim(), 0, 0, -1});
        if (uses != nullptr) blocks.back().first_use = narrow(uses->size());
        for (std::size_t i = 0; i < entries.size(); ++i) {
            if (uses == nullptr && entries[i].out == number) blocks.back().entry = narrow(i);
            if (uses != nullptr && (entries[i].in == number || entries[i].gate == number))
                uses->push_back(narrow(i));
        }
        if (uses != nullptr) blocks.back().last_use = narrow(uses->size());
    }
    return blocks;
}

// The block of every channel of a node, padding included.
std::vector<std::int32_t> columns_of(const Rows& rows) {
    std::vector<std::int32_t> blocks;
    for (std::size_t b = 0; b < rows.blocks.size(); ++b)
        blocks.insert(blocks.end(), size(rows.blocks[b].stride), narrow(b));
    return blocks;
}

struct GateSpec : OpSpec {
    const Operand& x = input("x", saved_for_backward);
    const Operand& out = output("out");
    std::vector<GateEntry> entries;  // every block of out is written by one of them
    std::vector<std::int32_t> x_columns = columns_of(x.rows), out_columns = columns_of(out.rows);

    explicit GateSpec(const LayerEntry& given) : OpSpec(given) {
        std::vector<int> writers(out.rows.blocks.size(), 0);
        const auto add = [&](const Fields& entry, int gate, int gate_offset) {
            const std::size_t from = block_index(entry, "in", x),
                              to = block_index(entry, "out", out);
            const Block &a = x.rows.blocks[from], &b = out.rows.blocks[to];
            if (a.mul != b.mul || a.l != b.l)
                entry.fail("goes from " + block_text(a) + " to " + block_text(b) +
                           ", expected one shape");
            ++writers[to];
            entries.push_back({narrow(from), narrow(to), gate, gate_offset,
                               parse_activation(entry.text("activation", "none")),
                               entry.number("factor", 1.0)});
            return a;
        };
        for (const Fields& entry : fields.objects("scalars"))
            if (add(entry, -1, 0).l != 0) entry.fail("is a block of vectors, expected scalars");
        for (const Fields& entry : fields.objects("gated")) {
            const std::size_t number = block_index(entry, "gate", x);
            const Block& gate = x.rows.blocks[number];
            const Block in = add(entry, narrow(number), 0);
            if (gate.l != 0 || gate.mul < in.mul)
                entry.fail("has the gate " + block_text(gate) + " for " + block_text(in) +
                           ", expected scalars, at least as many");
            if (entry.has("gate_offset"))
                entries.back().gate_offset =
                    static_cast<int>(entry.integer("gate_offset", 0, gate.mul - in.mul));
        }
        for (std::size_t b = 0; b < writers.size(); ++b)
            if (writers[b] != 1)
                fields.fail("writes block " + std::to_string(b) + " of out " +
                            std::to_string(writers[b]) + " times, expected once");
    }

    template <typename T, class Keep>
    void prepare(Gate<T>& a, const Keep& keep) const {
        std::vector<std::int32_t> uses;
        keep(a.x_blocks, blocks_of(x.rows, entries, &uses));
        keep(a.out_blocks, blocks_of(out.rows, entries, nullptr));
        keep(a.entries, entries);
        keep(a.uses, uses);
        keep(a.x_columns, x_columns);
        keep(a.out_columns, out_columns);
        a.x_width = x.rows.width;
        a.out_width = out.rows.width;
        a.add = x.accumulate;
    }
    template <typename T, class Rows, class Launch>
    void run(Rows rows, Gate<T> a, const Launch& launch) const {
        a.channels = narrow((rows.backward ? x_columns : out_columns).size());
        // rows of a launch are counted in 32 bits
        const std::int64_t step = (std::int64_t(1) << 30) / a.channels, end = rows.nodes.end;
        for (; rows.nodes.begin < end; rows.nodes.begin += step) {
            rows.nodes.end = std::min(end, rows.nodes.begin + step);
            a.count = rows.count() * a.channels;
            a.x = rows.value(x);
            a.out = rows.value(out);
            a.g = rows.gradient(out);
            a.dx = rows.gradient(x);
            launch(a);
        }
    }
};
const RegisterRowOp<GateSpec, Gate> registered{"gate"};

}  // namespace

}  // namespace mdcg
