#include <algorithm>
#include <map>
#include <utility>

#include "core/integers.hpp"
#include "engine/cuda/cuda_op.hpp"
#include "engine/cuda/gemm.hpp"
#include "engine/ops/node/linear.hpp"

namespace mdcg {

namespace {

template <typename T>
class CudaLinear : public CudaOp<T> {
public:
    explicit CudaLinear(const LinearSpec& spec)
        : spec_(spec), x_(spec.x), out_(spec.out), types_(spec.num_types) {
        group_paths(false, forward_);
        read_weights();
    }

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        gemm_ = CudaGemm<T>(kernels);
        if (x_.needs_gradient) group_paths(true, backward_);
        upload(stream);
    }
    void on_new_inputs(const DeviceStream& stream) override {
        read_weights();
        upload(stream);
    }

    void forward(CudaWorker<T>& worker, Range nodes) const override {
        run(worker, nodes, false, worker.value(x_), worker.value(out_));
    }
    void backward(CudaWorker<T>& worker, Range nodes) const override {
        run(worker, nodes, true, worker.gradient(out_), worker.gradient(x_));
    }

private:
    // Paths to one block that form one product: either all have matrices by type, or none has.
    // Without paths, the block is set to zero.
    struct Sum {
        std::size_t to = 0;  // block that is written
        bool typed = false;
        std::vector<std::size_t> paths;
        std::size_t round = 0;  // number among the sums that write the block
        CudaMatrix<T> matrix;   // rows of all paths, path by path
    };

    void group_paths(bool back, std::vector<Sum>& sums) const {
        const Rows& to = back ? x_.rows : out_.rows;
        std::vector<std::size_t> rounds(to.blocks.size(), 0);
        for (std::size_t i = 0; i < spec_.paths.size(); ++i) {
            const std::size_t p = back ? spec_.by_in[i] : i;
            const auto& path = spec_.paths[p];
            const std::size_t block = back ? path.in : path.out;
            const auto found = std::find_if(sums.begin(), sums.end(), [&](const Sum& sum) {
                return sum.to == block && sum.typed == path.typed &&
                       sum.paths.size() < CudaGemm<T>::MAX_PARTS;
            });
            if (found != sums.end()) {
                found->paths.push_back(p);
                continue;
            }
            Sum sum;
            sum.to = block;
            sum.typed = path.typed;
            sum.paths = {p};
            sum.round = rounds[block]++;
            sums.push_back(std::move(sum));
        }
        for (std::size_t block = 0; block < rounds.size(); ++block) {
            if (rounds[block] > 0) continue;
            Sum zeros;
            zeros.to = block;
            sums.push_back(std::move(zeros));
        }
    }

    // Channels of a path's block of x or out.
    int channels(std::size_t path, bool out) const {
        const auto& p = spec_.paths[path];
        return out ? out_.rows.blocks[p.out].mul : x_.rows.blocks[p.in].mul;
    }

    CudaMatrix<T> stacked(const Sum& sum, bool back, const DeviceStream& stream) const {
        const int count = sum.typed ? types_ : 1, columns = channels(sum.paths[0], !back);
        int rows = 0;
        for (const std::size_t p : sum.paths) rows += channels(p, back);
        std::vector<T> all(size(count) * size(rows) * size(columns));
        int first = 0;
        for (const std::size_t p : sum.paths) {
            const std::vector<T>& weight = weights_[p];
            const int in = channels(p, false), out = channels(p, true), own = channels(p, back);
            for (int t = 0; t < count; ++t)
                for (int k = 0; k < own; ++k)
                    for (int j = 0; j < columns; ++j)
                        all[(size(t) * size(rows) + size(first + k)) * size(columns) + size(j)] =
                            weight[size(t) * size(in) * size(out) +
                                   (back ? size(j) * size(out) + size(k)
                                         : size(k) * size(out) + size(j))];
            first += own;
        }
        return gemm_.matrix(all.data(), count, std::int64_t(rows) * columns, rows, columns, columns,
                            1, stream);
    }

    void read_weights() {
        weights_.clear();
        for (const auto& path : spec_.paths)
            weights_.push_back(spec_.fields.template read<T>(*path.weight));
        add_biases();
    }

    void upload(const DeviceStream& stream) {
        for (Sum& sum : forward_)
            if (!sum.paths.empty()) sum.matrix = stacked(sum, false, stream);
        for (Sum& sum : backward_)
            if (!sum.paths.empty()) sum.matrix = stacked(sum, true, stream);
        weights_ = {};
        device_bias_.upload(bias_, stream);
    }

    // Sums the constants of each block; the first product of the block adds them.
    void add_biases() {
        biases_.clear();
        bias_.clear();
        for (const auto& bias : spec_.biases) {
            const std::vector<T> value = spec_.fields.template read<T>(*bias.value);
            const Block& block = out_.rows.blocks[bias.out];
            const auto [found, made] = biases_.try_emplace(bias.out);
            if (made) {
                found->second.first = bias_.size();
                bias_.resize(bias_.size() + size(types_) * size(block.stride), T(0));
            }
            found->second.typed = found->second.typed || bias.typed;
            for (int t = 0; t < types_; ++t)
                for (int u = 0; u < block.mul; ++u)
                    bias_[found->second.first + size(t) * size(block.stride) + size(u)] +=
                        value[size((bias.typed ? t : 0) * block.mul + u)];
        }
    }

    // Nodes of one type: a part of DeviceEdges::by_type.
    struct Group {
        std::int32_t type, first, last;
    };
    static std::vector<Group> groups(const DeviceEdges& edges, Range nodes) {
        std::vector<Group> found;
        const auto add = [&](const std::vector<std::int32_t>& first) {
            for (std::size_t t = 0; t + 1 < first.size(); ++t)
                if (first[t] < first[t + 1]) found.push_back({narrow(t), first[t], first[t + 1]});
        };
        add(edges.local_type_first);
        if (nodes.end > edges.num_local) add(edges.ghost_type_first);
        return found;
    }

    // c (+)= a @ weights for all paths. Sums to different blocks run in one launch.
    void run(const CudaWorker<T>& worker, Range nodes, bool back, const T* a, T* c) const {
        const Rows &from = back ? out_.rows : x_.rows, &to = back ? x_.rows : out_.rows;
        const bool accumulate = back ? x_.accumulate : out_.accumulate;
        std::vector<std::vector<CudaProduct<T>>> rounds;
        const std::vector<Group> typed = groups(*worker.edges, nodes);
        for (const Sum& sum : back ? backward_ : forward_) {
            const Block& out = to.blocks[sum.to];
            const auto bias = back ? biases_.end() : biases_.find(sum.to);
            if (sum.paths.empty() && accumulate && bias == biases_.end()) continue;
            if (rounds.size() <= sum.round) rounds.resize(sum.round + 1);
            std::vector<CudaProduct<T>>& round = rounds[sum.round];
            CudaProduct<T> product;
            product.batch = out.dim();
            product.a = a;
            product.a_width = from.width;
            int row = 0;
            for (const std::size_t p : sum.paths) {
                const auto& path = spec_.paths[p];
                const Block& in = from.blocks[back ? path.out : path.in];
                product.parts.push_back({in.offset, in.stride, in.mul, row});
                row += in.mul;
            }
            if (!sum.paths.empty()) product.matrix = &sum.matrix;
            product.columns = out.stride;
            product.c = c + out.offset;
            product.c_width = to.width;
            product.c_step = out.stride;
            product.add = sum.round > 0 || accumulate;
            if (sum.round == 0 && bias != biases_.end()) {
                product.bias = device_bias_.data() + bias->second.first;
                if (bias->second.typed) product.bias_types = worker.types;
            }
            if (!sum.typed) {
                product.rows = nodes.end - nodes.begin;
                product.a += nodes.begin * from.width;
                product.c += nodes.begin * to.width;
                if (product.bias_types != nullptr) product.bias_types += nodes.begin;
                round.push_back(product);
                continue;
            }
            for (const Group& group : typed) {
                product.rows = group.last - group.first;
                product.list = worker.edges->by_type + group.first;
                product.number = group.type;
                round.push_back(product);
            }
        }
        for (const auto& round : rounds) gemm_.run(*worker.stream, round);
    }

    struct Bias {
        std::size_t first = 0;  // [types][stride] in bias_
        bool typed = false;
    };

    const LinearSpec& spec_;
    const Operand &x_, &out_;
    int types_;
    std::vector<std::vector<T>> weights_;  // by path, until they are on the device
    std::vector<Sum> forward_, backward_;
    std::map<std::size_t, Bias> biases_;  // by block of out
    std::vector<T> bias_;
    DeviceArray<T> device_bias_;
    CudaGemm<T> gemm_;
};

const RegisterOp<LinearSpec, CudaLinear> registered{"linear"};

}  // namespace

}  // namespace mdcg
