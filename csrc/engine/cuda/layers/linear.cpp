// Every block of out is a sum of blocks of x times matrices, which may be of the node's type.
#include <algorithm>
#include <map>
#include <utility>

#include "engine/cuda/gemm.hpp"
#include "engine/cuda/layers/node_layer.hpp"

namespace mdcg {

namespace {

// As in text/nodes.cuh.
template <typename T>
struct FillArguments {
    T* rows;
    const std::int32_t* at;
    const T* bias;
    const std::int32_t* types;
    std::int64_t count;
    std::int32_t width, num, typed;
};

std::size_t size(int n) { return static_cast<std::size_t>(n); }

// Items of the blocks that are written by no path.
std::vector<std::int32_t> items_without(const Rows& rows, const std::vector<char>& written) {
    std::vector<std::int32_t> items;
    for (std::size_t b = 0; b < written.size(); ++b)
        for (int i = 0; !written[b] && i < rows.blocks[b].dim() * rows.blocks[b].stride; ++i)
            items.push_back(rows.blocks[b].offset + i);
    return items;
}

template <typename T>
class CudaLinear : public CudaUnaryLayer<T> {
public:
    explicit CudaLinear(const LayerSpec& spec)
        : CudaUnaryLayer<T>(spec),
          types_(spec.info.num_types()),
          fields_(spec, x_.rows, out_.rows) {
        std::vector<char> in(x_.rows.blocks.size(), 0), out(out_.rows.blocks.size(), 0);
        for (const auto& path : fields_.paths) in[path.in] = out[path.out] = 1;
        no_in_ = items_without(x_.rows, in);
        no_out_ = items_without(out_.rows, out);
        add_biases();
    }

    std::vector<int> kept() const override { return {}; }

    void prepare_device(CudaKernels& kernels, const CudaStream& stream) override {
        gemm_ = CudaGemm<T>(kernels);
        fill_ = kernels.fixed(node_text(), "fill");
        for (auto& path : fields_.paths) {
            const int in = x_.rows.blocks[path.in].mul, out = out_.rows.blocks[path.out].mul;
            const int count = path.typed ? types_ : 1;
            const std::int64_t step = static_cast<std::int64_t>(in) * out;
            forward_.emplace_back(path.weight.data(), count, step, in, out, out, 1, stream);
            if (x_.needs_gradient)
                transposed_.emplace_back(path.weight.data(), count, step, out, in, 1, out, stream);
            path.weight = {};
        }
        device_no_in_.upload(no_in_, stream);
        device_no_out_.upload(no_out_, stream);
        device_biased_.upload(biased_, stream);
        device_bias_.upload(bias_, stream);
    }

    void enqueue_forward(CudaWorker<T>& worker, Range nodes) const override {
        T* const out = worker.value(out_);
        run(worker, nodes, false, worker.value(x_), out);
        fill(worker, nodes, out, out_.rows, no_out_, device_no_out_, nullptr);
        fill(worker, nodes, out, out_.rows, biased_, device_biased_, device_bias_.data());
    }
    void enqueue_backward(CudaWorker<T>& worker, Range nodes) const override {
        T* const dx = worker.gradient(x_);
        run(worker, nodes, true, worker.gradient(out_), dx);
        if (!x_.accumulate) fill(worker, nodes, dx, x_.rows, no_in_, device_no_in_, nullptr);
    }

private:
    using CudaUnaryLayer<T>::x_;
    using CudaUnaryLayer<T>::out_;

    // All constants as one table [types or 1][items]; several of one block are summed.
    void add_biases() {
        std::map<std::int32_t, std::vector<T>> by_item;  // [types] each
        for (const auto& bias : fields_.biases) {
            const Block& block = out_.rows.blocks[bias.out];
            typed_bias_ = typed_bias_ || bias.typed;
            for (int u = 0; u < block.mul; ++u) {
                std::vector<T>& values = by_item[block.offset + u];
                values.resize(size(types_), T(0));
                for (int t = 0; t < types_; ++t)
                    values[size(t)] += bias.value[size((bias.typed ? t : 0) * block.mul + u)];
            }
        }
        for (int t = 0; t < (typed_bias_ ? types_ : 1); ++t)
            for (const auto& [item, values] : by_item) bias_.push_back(values[size(t)]);
        for (const auto& [item, values] : by_item) biased_.push_back(item);
        fields_.biases = {};
    }

    // Nodes of every type that occurs, as lists.
    static std::vector<CudaGroup> groups(const CudaGraph& edges, Range nodes) {
        std::vector<CudaGroup> found;
        const auto add = [&](const std::vector<std::int32_t>& first) {
            for (std::size_t t = 0; t + 1 < first.size(); ++t)
                if (first[t] < first[t + 1])
                    found.push_back({static_cast<std::int32_t>(t), first[t], first[t + 1]});
        };
        add(edges.local_type_first);
        if (nodes.end > edges.num_local) add(edges.ghost_type_first);
        return found;
    }

    // c (+)= a @ weights of all paths. Those that write different blocks go side by side.
    void run(const CudaWorker<T>& worker, Range nodes, bool back, const T* a, T* c) const {
        const Rows &from = back ? out_.rows : x_.rows, &to = back ? x_.rows : out_.rows;
        std::vector<std::vector<CudaProduct<T>>> rounds;
        std::vector<std::size_t> round_of(to.blocks.size(), 0);
        const std::vector<CudaGroup> typed = groups(*worker.edges, nodes);
        for (std::size_t i = 0; i < fields_.paths.size(); ++i) {
            const std::size_t p = back ? fields_.by_in[i] : i;
            const auto& path = fields_.paths[p];
            const Block& in = from.blocks[back ? path.out : path.in];
            const Block& out = to.blocks[back ? path.in : path.out];
            const std::size_t round = round_of[back ? path.in : path.out]++;
            if (rounds.size() <= round) rounds.resize(round + 1);
            CudaProduct<T> product;
            product.batch = in.dim();
            product.a = a + in.offset;
            product.a_width = from.width;
            product.a_step = in.stride;
            product.matrix = back ? &transposed_[p] : &forward_[p];
            product.c = c + out.offset;
            product.c_width = to.width;
            product.c_step = out.stride;
            product.add = round > 0 || (back && x_.accumulate);
            if (!path.typed) {
                product.rows = nodes.end - nodes.begin;
                product.a += nodes.begin * from.width;
                product.c += nodes.begin * to.width;
                rounds[round].push_back(product);
                continue;
            }
            for (const CudaGroup& group : typed) {
                product.rows = group.last - group.first;
                product.list = worker.edges->by_type + group.first;
                product.number = group.number;
                rounds[round].push_back(product);
            }
        }
        for (const auto& round : rounds) gemm_.run(*worker.stream, round);
    }

    void fill(const CudaWorker<T>& worker, Range nodes, T* c, const Rows& rows,
              const std::vector<std::int32_t>& items, const CudaArray<std::int32_t>& device_items,
              const T* bias) const {
        if (items.empty()) return;
        const FillArguments<T> arguments{c + nodes.begin * rows.width,
                                         device_items.data(),
                                         bias,
                                         worker.types + nodes.begin,
                                         nodes.end - nodes.begin,
                                         rows.width,
                                         static_cast<std::int32_t>(items.size()),
                                         typed_bias_};
        fill_.launch(*worker.stream, warp_blocks(arguments.count), NODE_THREADS, arguments);
    }

    int types_;
    LinearFields<T> fields_;
    std::vector<std::int32_t> no_in_, no_out_, biased_;  // items of a row
    std::vector<T> bias_;                                // [types or 1][biased items]
    bool typed_bias_ = false;
    std::vector<CudaMatrix<T>> forward_, transposed_;  // by path
    CudaArray<std::int32_t> device_no_in_, device_no_out_, device_biased_;
    CudaArray<T> device_bias_;
    CudaGemm<T> gemm_;
    CudaFunction fill_;
};

template <typename T>
std::unique_ptr<Layer<T>> make(const LayerSpec& spec) {
    return std::make_unique<CudaLinear<T>>(spec);
}
const RegisterCudaLayer registered{"linear", &make<float>, &make<double>};

}  // namespace

}  // namespace mdcg
