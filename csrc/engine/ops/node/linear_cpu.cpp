#include <utility>

#include "core/integers.hpp"
#include "engine/backend/cpu/simd.hpp"
#include "engine/cpu_op.hpp"
#include "engine/graph.hpp"
#include "engine/ops/node/linear.hpp"

namespace mdcg {

namespace {

// Rows [first, last) of a list of nodes sorted by type.
struct Group {
    std::int32_t type;
    std::int32_t first, last;
};

template <typename T>
class CpuLinear : public CpuOp<T> {
public:
    explicit CpuLinear(const LinearSpec& spec)
        : spec_(spec), x_(spec.x), out_(spec.out), types_(spec.num_types), order_(spec.by_in) {
        load_tensors();
    }

    void on_new_inputs() override { load_tensors(); }

    // Models have many types but systems have few, so matrices are packed when they are needed.
    void begin(const Graph& graph) override {
        if (!packed_) {
            for (Path& path : paths_)
                if (!path.typed) pack(path, 0);
            for (Path& path : paths_)
                if (!path.typed) path.weight = {};
            packed_ = true;
        }
        if (!typed_) return;
        for (const std::int32_t type : graph.types) {
            if (seen_[size(type)]) continue;
            for (Path& path : paths_)
                if (path.typed) pack(path, size(type));
            seen_[size(type)] = 1;  // last: packing may run out of memory
        }
    }

    void forward(Worker<T>& worker, Range nodes) const override {
        T* out = worker.value(out_, nodes.begin);
        run<false>(worker, nodes, worker.value(x_, nodes.begin), out);
        if (!out_.accumulate) clear(nodes, out, out_.rows, no_out_);
        for (const Bias& bias : biases_) {
            const Block& block = out_.rows.blocks[bias.out];
            for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
                simd<T>().add_scaled(
                    block.mul, T(1),
                    bias.value.data() + (bias.typed ? worker.types[n] : 0) * block.stride,
                    worker.value(out_, n) + block.offset);
        }
    }

    void backward(Worker<T>& worker, Range nodes) const override {
        T* dx = worker.gradient(x_, nodes.begin);
        run<true>(worker, nodes, worker.gradient(out_, nodes.begin), dx);
        if (!x_.accumulate) clear(nodes, dx, x_.rows, no_in_);
    }

private:
    struct Path {
        std::size_t in, out;
        bool typed, first_in, first_out;
        std::vector<T> weight;  // [mul_in, mul_out] or [T, mul_in, mul_out]
        std::vector<PackedMatrix<T>> forward, transposed;  // by type, or one
    };
    struct Bias {
        std::size_t out;
        bool typed;
        AlignedArray<T> value;  // [types or 1][stride]
    };

    // Takes the tensors of the specification, which may have changed.
    void load_tensors() {
        paths_.clear();
        biases_.clear();
        seen_.assign(size(types_), 0);
        typed_ = packed_ = false;
        for (const auto& path : spec_.paths)
            add_path(path, spec_.fields.template read<T>(*path.weight));
        for (const auto& bias : spec_.biases)
            add_bias(bias, spec_.fields.template read<T>(*bias.value));
        no_in_.assign(x_.rows.blocks.size(), 1);
        no_out_.assign(out_.rows.blocks.size(), 1);
        for (Path& path : paths_) {
            path.first_out = std::exchange(no_out_[path.out], char(0)) != 0;
            typed_ = typed_ || path.typed;
        }
        for (const std::size_t p : order_)
            paths_[p].first_in = std::exchange(no_in_[paths_[p].in], char(0)) != 0;
    }

    void add_path(const LinearSpec::Path& from, std::vector<T>&& weight) {
        Path path{};
        path.in = from.in;
        path.out = from.out;
        path.typed = from.typed;
        path.weight = std::move(weight);
        path.forward.resize(path.typed ? size(types_) : 1);
        path.transposed.resize(path.forward.size());
        paths_.push_back(std::move(path));
    }

    void add_bias(const LinearSpec::Bias& from, const std::vector<T>& value) {
        const Block& block = out_.rows.blocks[from.out];
        Bias bias{from.out, from.typed, {}};
        const std::size_t rows = bias.typed ? size(types_) : 1;
        bias.value.resize(rows * size(block.stride));
        for (std::size_t t = 0; t < rows; ++t)
            std::copy_n(value.data() + t * size(block.mul), block.mul,
                        bias.value.data() + t * size(block.stride));
        biases_.push_back(std::move(bias));
    }

    void pack(Path& path, std::size_t type) {
        const int in = x_.rows.blocks[path.in].mul, out = out_.rows.blocks[path.out].mul;
        const T* weight = path.weight.data() + type * size(in) * size(out);
        path.forward[type] = PackedMatrix<T>(weight, in, out, out, 1);
        if (x_.needs_gradient) path.transposed[type] = PackedMatrix<T>(weight, out, in, 1, out);
    }

    // c (+)= a @ weights for all paths; `a` and `c` are the first rows of the range.
    template <bool TRANSPOSED>
    void run(Worker<T>& worker, Range nodes, const T* a, T* c) const {
        const Rows &from = TRANSPOSED ? out_.rows : x_.rows, &to = TRANSPOSED ? x_.rows : out_.rows;
        const std::int64_t count = nodes.end - nodes.begin;
        std::int32_t* rows = nullptr;
        Group* groups = nullptr;
        std::int32_t num_groups = 0;
        if (typed_) {
            char* scratch = worker.scratch(size(count) * (sizeof(std::int32_t) + sizeof(Group)));
            rows = reinterpret_cast<std::int32_t*>(scratch);
            groups = reinterpret_cast<Group*>(rows + count);
            num_groups = group(worker.types + nodes.begin, count, rows, groups);
        }
        for (std::size_t p = 0; p < paths_.size(); ++p) {
            const Path& path = paths_[TRANSPOSED ? order_[p] : p];
            const Block& in = from.blocks[TRANSPOSED ? path.out : path.in];
            const Block& out = to.blocks[TRANSPOSED ? path.in : path.out];
            const bool add =
                TRANSPOSED ? !path.first_in || x_.accumulate : !path.first_out || out_.accumulate;
            const std::vector<PackedMatrix<T>>& weights =
                TRANSPOSED ? path.transposed : path.forward;
            for (int m = 0; m < in.dim(); ++m) {
                const T* source = a + in.offset + static_cast<std::ptrdiff_t>(m) * in.stride;
                T* target = c + out.offset + static_cast<std::ptrdiff_t>(m) * out.stride;
                if (!path.typed) {
                    simd<T>().gemm(count, source, from.width, weights[0], target, to.width, nullptr,
                                   add);
                    continue;
                }
                for (std::int32_t g = 0; g < num_groups; ++g)
                    simd<T>().gemm(groups[g].last - groups[g].first, source, from.width,
                                   weights[size(groups[g].type)], target, to.width,
                                   rows + groups[g].first, add);
            }
        }
    }

    // Sorts the rows 0 .. count-1 by type; returns the number of groups.
    static std::int32_t group(const std::int32_t* types, std::int64_t count, std::int32_t* rows,
                              Group* groups) {
        for (std::int32_t i = 0; i < count; ++i) {
            std::int32_t j = i;
            for (; j > 0 && types[rows[j - 1]] > types[i]; --j) rows[j] = rows[j - 1];
            rows[j] = i;
        }
        std::int32_t found = 0;
        for (std::int32_t i = 0; i < count; ++i) {
            if (found == 0 || groups[found - 1].type != types[rows[i]])
                groups[found++] = {types[rows[i]], i, i};
            groups[found - 1].last = i + 1;
        }
        return found;
    }

    // Zeroes the blocks that no path writes.
    static void clear(Range nodes, T* c, const Rows& rows, const std::vector<char>& blocks) {
        for (std::size_t b = 0; b < blocks.size(); ++b)
            if (blocks[b])
                for (std::int64_t n = 0; n < nodes.end - nodes.begin; ++n)
                    std::fill_n(c + n * rows.width + rows.blocks[b].offset,
                                rows.blocks[b].dim() * rows.blocks[b].stride, T(0));
    }

    const LinearSpec& spec_;
    const Operand &x_, &out_;
    int types_;
    std::vector<Path> paths_;                  // sorted by out
    std::vector<std::size_t> order_;           // numbers of paths, sorted by in
    std::vector<char> no_in_, no_out_, seen_;  // blocks without paths; types that are packed
    std::vector<Bias> biases_;
    bool typed_ = false, packed_ = false;
};

const RegisterOp<LinearSpec, CpuLinear> registered{"linear"};

}  // namespace

}  // namespace mdcg
