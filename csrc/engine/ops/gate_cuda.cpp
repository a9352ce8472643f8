#include "core/integers.hpp"
#include "engine/ops/gate.hpp"
#include "engine/ops/node_layer_cuda.hpp"

namespace mdcg {

namespace {

std::vector<GateBlock> blocks_of(const Rows& rows) {
    std::vector<GateBlock> blocks;
    for (const Block& b : rows.blocks)
        blocks.push_back({b.offset, b.stride, b.mul, b.dim(), 0, 0, -1});
    return blocks;
}

// The block of every channel of a node, padding included.
std::vector<std::int32_t> channels_of(const Rows& rows) {
    std::vector<std::int32_t> blocks;
    for (std::size_t b = 0; b < rows.blocks.size(); ++b)
        blocks.insert(blocks.end(), size(rows.blocks[b].stride), narrow(b));
    return blocks;
}

template <typename T>
class CudaGate : public CudaOp<T> {
public:
    explicit CudaGate(const GateSpec& spec)
        : x_(spec.x),
          out_(spec.out),
          x_blocks_(blocks_of(x_.rows)),
          out_blocks_(blocks_of(out_.rows)),
          x_channels_(channels_of(x_.rows)),
          out_channels_(channels_of(out_.rows)) {
        for (const GateSpec::Scalar& s : spec.scalars) add(s.in, s.out, -1, 0, s.f);
        for (const GateSpec::Gated& g : spec.gated)
            add(g.in, g.out, narrow(g.gate), g.gate_offset, g.f);
        for (std::size_t b = 0; b < x_blocks_.size(); ++b) {
            x_blocks_[b].first_use = narrow(uses_.size());
            for (std::size_t i = 0; i < entries_.size(); ++i)
                if (entries_[i].in == narrow(b) || entries_[i].gate == narrow(b))
                    uses_.push_back(narrow(i));
            x_blocks_[b].last_use = narrow(uses_.size());
        }
    }

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        forward_ = kernels.fixed(NODE_KERNELS, "gate_forward");
        backward_ = kernels.fixed(NODE_KERNELS, "gate_backward");
        device_x_blocks_.upload(x_blocks_, stream);
        device_out_blocks_.upload(out_blocks_, stream);
        device_entries_.upload(entries_, stream);
        device_uses_.upload(uses_, stream);
        device_x_channels_.upload(x_channels_, stream);
        device_out_channels_.upload(out_channels_, stream);
    }

    void forward(CudaWorker<T>& worker, Range nodes) const override {
        each_part(nodes, out_channels_, [&](Range part) {
            GateArguments<T> arguments = common(worker, part, out_channels_, device_out_channels_);
            arguments.out = worker.value(out_, part.begin);
            forward_.launch(*worker.stream, thread_blocks(arguments.threads), NODE_THREADS,
                            arguments);
        });
    }
    void backward(CudaWorker<T>& worker, Range nodes) const override {
        each_part(nodes, x_channels_, [&](Range part) {
            GateArguments<T> arguments = common(worker, part, x_channels_, device_x_channels_);
            arguments.g = worker.gradient(out_, part.begin);
            arguments.dx = worker.gradient(x_, part.begin);
            backward_.launch(*worker.stream, thread_blocks(arguments.threads), NODE_THREADS,
                             arguments);
        });
    }

private:
    void add(std::size_t in, std::size_t out, std::int32_t gate, int gate_offset,
             const GateSpec::Function& f) {
        out_blocks_[out].entry = narrow(entries_.size());
        entries_.push_back({narrow(in), narrow(out), gate, gate_offset,
                            static_cast<std::int32_t>(f.kind), 0, f.factor});
    }

    // Threads are counted in 32 bits.
    template <typename Run>
    static void each_part(Range nodes, const std::vector<std::int32_t>& channels, const Run& run) {
        constexpr std::int64_t MOST = std::int64_t(1) << 30;
        const std::int64_t step = MOST / static_cast<std::int64_t>(channels.size());
        for (std::int64_t first = nodes.begin; first < nodes.end; first += step)
            run(Range{first, std::min(nodes.end, first + step)});
    }

    GateArguments<T> common(const CudaWorker<T>& worker, Range nodes,
                            const std::vector<std::int32_t>& channels,
                            const CudaArray<std::int32_t>& device_channels) const {
        GateArguments<T> arguments{};
        arguments.x = worker.value(x_, nodes.begin);
        arguments.x_blocks = device_x_blocks_.data();
        arguments.out_blocks = device_out_blocks_.data();
        arguments.entries = device_entries_.data();
        arguments.uses = device_uses_.data();
        arguments.columns = device_channels.data();
        arguments.channels = narrow(channels.size());
        arguments.threads = narrow(nodes.end - nodes.begin) * arguments.channels;
        arguments.x_width = x_.rows.width;
        arguments.out_width = out_.rows.width;
        arguments.add = x_.accumulate;
        return arguments;
    }

    const Operand &x_, &out_;
    std::vector<GateBlock> x_blocks_, out_blocks_;
    std::vector<GateEntry> entries_;
    std::vector<std::int32_t> uses_;  // numbers of entries, by block of x
    std::vector<std::int32_t> x_channels_, out_channels_;
    CudaArray<GateBlock> device_x_blocks_, device_out_blocks_;
    CudaArray<GateEntry> device_entries_;
    CudaArray<std::int32_t> device_uses_, device_x_channels_, device_out_channels_;
    CudaFunction forward_, backward_;
};

const RegisterOp<GateSpec, CudaGate> registered{"gate"};

}  // namespace

}  // namespace mdcg
