#include "engine/ops/node/gate.hpp"

#include "core/integers.hpp"
#include "engine/ops/node/row_op.hpp"

namespace mdcg {

GateSpec::GateSpec(const LayerEntry& given) : OpSpec(given) {
    std::vector<int> writers(out.rows.blocks.size(), 0);
    const auto add = [&](const Fields& entry, int gate, int gate_offset) {
        const std::size_t from = block_index(entry, "in", x), to = block_index(entry, "out", out);
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

namespace {

// The blocks of a row. Of those of x, `uses` gets the numbers of the entries that read them.
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
std::vector<std::int32_t> channels_of(const Rows& rows) {
    std::vector<std::int32_t> blocks;
    for (std::size_t b = 0; b < rows.blocks.size(); ++b)
        blocks.insert(blocks.end(), size(rows.blocks[b].stride), narrow(b));
    return blocks;
}

template <typename T, typename Place>
class GateOp : public RowOp<T, Place> {
    using Step = typename RowOp<T, Place>::Step;
    template <typename N>
    using Constants = typename RowOp<T, Place>::template Constants<N>;

public:
    explicit GateOp(const GateSpec& spec) : GateOp(spec, {}) {}

    void forward(Step& step, Range nodes) const override {
        each_part(nodes, out_channels_, [&](Range part) {
            Gate<T> arguments = common(step, part, out_channels_, out_columns_);
            arguments.out = step.value(out_, part.begin);
            this->run(RowFunction::gate_forward, step, arguments);
        });
    }
    void backward(Step& step, Range nodes) const override {
        each_part(nodes, x_channels_, [&](Range part) {
            Gate<T> arguments = common(step, part, x_channels_, x_columns_);
            arguments.g = step.gradient(out_, part.begin);
            arguments.dx = step.gradient(x_, part.begin);
            this->run(RowFunction::gate_backward, step, arguments);
        });
    }

private:
    GateOp(const GateSpec& spec, std::vector<std::int32_t> uses)
        : x_(spec.x),
          out_(spec.out),
          x_blocks_(*this, blocks_of(x_.rows, spec.entries, &uses)),
          out_blocks_(*this, blocks_of(out_.rows, spec.entries, nullptr)),
          entries_(*this, spec.entries),
          uses_(*this, uses),
          x_columns_(*this, channels_of(x_.rows)),
          out_columns_(*this, channels_of(out_.rows)),
          x_channels_(narrow(channels_of(x_.rows).size())),
          out_channels_(narrow(channels_of(out_.rows).size())) {}

    // Rows of a call are counted in 32 bits.
    template <typename Run>
    static void each_part(Range nodes, int channels, const Run& run) {
        const std::int64_t step = (std::int64_t(1) << 30) / channels;
        for (std::int64_t first = nodes.begin; first < nodes.end; first += step)
            run(Range{first, std::min(nodes.end, first + step)});
    }

    Gate<T> common(const Step& step, Range nodes, int channels,
                   const Constants<std::int32_t>& columns) const {
        Gate<T> arguments{};
        arguments.x = step.value(x_, nodes.begin);
        arguments.x_blocks = x_blocks_.data();
        arguments.out_blocks = out_blocks_.data();
        arguments.entries = entries_.data();
        arguments.uses = uses_.data();
        arguments.columns = columns.data();
        arguments.count = (nodes.end - nodes.begin) * channels;
        arguments.channels = channels;
        arguments.x_width = x_.rows.width;
        arguments.out_width = out_.rows.width;
        arguments.add = x_.accumulate;
        return arguments;
    }

    const Operand &x_, &out_;
    Constants<GateBlock> x_blocks_, out_blocks_;
    Constants<GateEntry> entries_;
    Constants<std::int32_t> uses_;  // numbers of entries, by block of x
    Constants<std::int32_t> x_columns_, out_columns_;
    int x_channels_, out_channels_;
};

const RegisterRowOp<GateSpec, GateOp> registered{"gate"};

}  // namespace

}  // namespace mdcg
