// Symmetric contraction: polynomials of a node's features, channel by channel, with coefficients of
// its type. CPUs run a generated kernel, or evaluate lists of monomials; GPUs run a generated
// kernel with a thread for each node and channel.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/integers.hpp"
#include "engine/backend/cpu/simd.hpp"
#include "engine/cpu_op.hpp"
#include "engine/cuda/cuda_op.hpp"
#include "engine/cuda/pass_kernel.hpp"
#include "engine/error.hpp"
#include "engine/kernels/kernel_store.hpp"
#include "engine/package/limits.hpp"
#include "kernels/contraction_kernel.hpp"

namespace mdcg {

namespace {

struct ContractionSpec : OpSpec {
    // Monomial m is the product of the components that start at items factor[factor_ptr[m]] .. of a
    // row of x. Entry e of its entries entry_ptr[m] .. adds value[e] times the coefficient that
    // starts at item coefficient[e] times the monomial to the component that starts at out_item[e].
    struct Monomials {
        std::vector<std::int32_t> factor_ptr{0}, factor, entry_ptr{0}, coefficient, out_item;
        std::vector<double> value;
    };

    const Operand& x = in_place(input("x", saved_for_backward));
    const Operand& out = output("out");
    std::int64_t stride = 0;            // items of a block's component
    std::int64_t num_coefficients = 0;  // polynomials
    std::int64_t width = 0;             // coefficients of one type, padded
    std::int64_t num_sets = 0;          // sets of coefficients: 1 or as many as types
    Monomials monomials;

    explicit ContractionSpec(const LayerEntry& given);

    KernelSize kernel_size() const override {
        const auto terms = static_cast<std::int64_t>(monomials.value.size());
        return {terms, limits::BASE_TEXT + limits::PRODUCT_TEXT * terms, fields.text("problem")};
    }
    // [num_sets][num_coefficients][stride]
    template <typename T>
    AlignedArray<T> coefficients() const {
        const std::vector<T> values = fields.read<T>(*coefficients_);
        const auto mul = size(x.rows.blocks[0].mul);
        const auto step = size(stride);
        const auto rows = size(num_sets * num_coefficients);
        AlignedArray<T> padded;
        padded.resize(rows * step);
        for (std::size_t r = 0; r < rows; ++r)
            std::copy_n(values.data() + r * mul, mul, padded.data() + r * step);
        return padded;
    }

private:
    static const Operand& in_place(Operand& operand) {
        operand.gradient_in_place = true;
        return operand;
    }
    void read_polynomials(const Fields& problem);
    const Tensor* coefficients_ = nullptr;  // [num_sets][num_coefficients][channels]
};

using nlohmann::json;

// The first item of each component of a row, counted over all blocks.
std::vector<std::int32_t> component_offsets(const Rows& rows) {
    std::vector<std::int32_t> offsets;
    for (const Block& block : rows.blocks)
        for (int m = 0; m < block.dim(); ++m) offsets.push_back(block.offset + m * block.stride);
    return offsets;
}

ContractionSpec::ContractionSpec(const LayerEntry& given) : OpSpec(given) {
    const Fields problem = fields.object_in_text("problem");
    expect_same_dtype(problem);
    if (!same_irreps(read_rows(problem, "irreps_in", align), x.rows) ||
        !same_irreps(read_rows(problem, "irreps_out", align), out.rows))
        fields.fail("problem", problem.text("irreps_in") + " -> " + problem.text("irreps_out"),
                    "the irreps of x and out");
    const int mul = x.rows.blocks[0].mul;
    for (const Rows* rows : {&x.rows, &out.rows})
        for (const Block& block : rows->blocks)
            if (block.mul != mul)
                fields.fail("has blocks of " + std::to_string(block.mul) + " and " +
                            std::to_string(mul) + " channels, expected one number");
    const json& list = problem.json("polynomials");
    if (!list.is_array()) problem.fail("polynomials", list.dump().substr(0, 60), "a list");
    stride = x.rows.blocks[0].stride;
    num_coefficients = static_cast<std::int64_t>(list.size());
    if (num_coefficients * stride > limits::MAX_ROW_ITEMS)
        problem.fail("polynomials",
                     "more than " + std::to_string(limits::MAX_ROW_ITEMS) + " coefficients",
                     "fewer");
    width = num_coefficients * stride;
    coefficients_ = &fields.tensor("coefficients", {-1, num_coefficients, mul});
    num_sets = coefficients_->shape[0];
    if (num_sets != 1 && num_sets != num_types)
        fields.fail("coefficients", "a tensor of shape " + coefficients_->shape_text(),
                    "1 or " + std::to_string(num_types) + " types");
    read_polynomials(problem);
}

void ContractionSpec::read_polynomials(const Fields& problem) {
    const json& list = problem.json("polynomials");
    const std::vector<std::int32_t> in = component_offsets(x.rows);
    struct Entry {
        std::int32_t coefficient, out;
        double value;
    };
    std::map<std::vector<std::int32_t>, std::vector<Entry>> found;
    const auto check = [&problem](bool fits, const json& part) {
        if (!fits)
            problem.fail("polynomials", "a list with " + part.dump().substr(0, 60),
                         "[block, [[[factor, ascending indices of components], ...], ...]], a "
                         "product once for each component, and factors that are not 0");
    };
    json written = json::array();
    for (const json& polynomial : list) {
        check(polynomial.is_array() && polynomial.size() == 2 &&
                  polynomial[0].is_number_unsigned() && polynomial[1].is_array() &&
                  polynomial[0].get<std::uint64_t>() < out.rows.blocks.size(),
              polynomial);
        const Block& block = out.rows.blocks[polynomial[0].get<std::size_t>()];
        check(polynomial[1].size() == size(block.dim()), polynomial);
        json components = json::array();
        for (const json& terms : polynomial[1]) {
            check(terms.is_array(), terms);
            const Entry entry{
                narrow(static_cast<std::int64_t>(written.size()) * stride),
                block.offset + narrow(static_cast<std::int64_t>(components.size())) * block.stride,
                0};
            json products = json::array();
            for (const json& term : terms) {
                check(term.is_array() && term.size() > 1 &&
                          term.size() <= 1 + limits::MAX_CONTRACTION_DEGREE && term[0].is_string(),
                      term);
                std::vector<std::int32_t> factors;
                for (std::size_t i = 1; i < term.size(); ++i) {
                    check(term[i].is_number_unsigned() &&
                              term[i].get<std::uint64_t>() < in.size() &&
                              (i == 1 || term[i - 1] <= term[i]),
                          term);
                    factors.push_back(in[term[i].get<std::size_t>()]);
                }
                std::vector<Entry>& entries = found[factors];
                const double value = parse_hex(term[0].get<std::string>());
                const bool again = !entries.empty() && entries.back().out == entry.out &&
                                   entries.back().coefficient == entry.coefficient;
                check(value != 0 && !again, term);
                entries.push_back({entry.coefficient, entry.out, value});
                products.push_back(term);
                products.back()[0] = hex_text(value);
            }
            components.push_back(std::move(products));
        }
        written.push_back({polynomial[0], std::move(components)});
    }
    fields.expect_text_of("problem", {{"format", 1},
                                      {"kind", "symmetric_contraction"},
                                      {"irreps_in", irreps_text(x.rows)},
                                      {"irreps_out", irreps_text(out.rows)},
                                      {"dtype", problem.text("dtype")},
                                      {"polynomials", std::move(written)}});
    for (const auto& [factors, entries] : found) {
        monomials.factor.insert(monomials.factor.end(), factors.begin(), factors.end());
        monomials.factor_ptr.push_back(narrow(monomials.factor.size()));
        for (const Entry& entry : entries) {
            monomials.coefficient.push_back(entry.coefficient);
            monomials.out_item.push_back(entry.out);
            monomials.value.push_back(entry.value);
        }
        monomials.entry_ptr.push_back(narrow(monomials.value.size()));
    }
}

template <typename T>
class CpuContraction : public CpuOp<T> {
public:
    explicit CpuContraction(const ContractionSpec& spec)
        : spec_(spec),
          x_(spec.x),
          out_(spec.out),
          coefficients_(spec.coefficients<T>()),
          value_(spec.monomials.value.begin(), spec.monomials.value.end()) {
        const ContractionSpec::Monomials& lists = spec.monomials;
        monomials_ = {static_cast<std::int64_t>(lists.factor_ptr.size()) - 1,
                      lists.factor_ptr.data(),
                      lists.factor.data(),
                      lists.entry_ptr.data(),
                      lists.coefficient.data(),
                      lists.out_item.data(),
                      value_.data(),
                      spec.stride};
    }

    void prepare(KernelStore& kernels) override {
        const SharedLibrary* library = kernels.load(
            spec_.index, spec_.name,
            {"mdcg_contraction_info", "mdcg_contraction_forward", "mdcg_contraction_backward"});
        if (library == nullptr) return;
        const auto* info =
            static_cast<const ContractionInfo*>(library->symbol("mdcg_contraction_info"));
        if (info->abi != MDCG_CONTRACTION_ABI || info->item_bytes != sizeof(T) ||
            info->x_width != x_.rows.width || info->out_width != out_.rows.width ||
            info->coefficient_width != spec_.width ||
            info->num_coefficients != spec_.num_coefficients)
            throw EngineError(ErrorKind::compiler,
                              spec_.fields.where() +
                                  ": its kernel was made for another contraction or another "
                                  "version of mdcg: make the kernels again (python -m mdcg "
                                  "kernels)");
        forward_ =
            reinterpret_cast<ContractionFunction<T>>(library->symbol("mdcg_contraction_forward"));
        backward_ =
            reinterpret_cast<ContractionFunction<T>>(library->symbol("mdcg_contraction_backward"));
    }

    void forward(Worker<T>& worker, Range nodes) const override {
        if (forward_ != nullptr) {
            const ContractionBlock<T> block = this->block(worker, nodes);
            return forward_(&block);
        }
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            T* out = worker.value(out_, n);
            std::fill(out, out + out_.rows.width, T(0));
            simd<T>().contract(monomials_, worker.value(x_, n), coefficients(worker, n), out);
        }
    }

    void backward(Worker<T>& worker, Range nodes) const override {
        if (backward_ != nullptr) {
            const ContractionBlock<T> block = this->block(worker, nodes);
            return backward_(&block);
        }
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            simd<T>().contract_backward(monomials_, worker.value(x_, n), coefficients(worker, n),
                                        worker.gradient(out_, n), worker.started_gradient(x_, n));
    }

private:
    bool typed() const { return spec_.num_sets > 1; }

    const T* coefficients(const Worker<T>& worker, std::int64_t n) const {
        return coefficients_.data() + (typed() ? worker.types[n] * spec_.width : 0);
    }

    ContractionBlock<T> block(const Worker<T>& worker, Range nodes) const {
        ContractionBlock<T> block{};
        block.num_nodes = nodes.end - nodes.begin;
        block.types = worker.types + nodes.begin;
        block.x = worker.value(x_, nodes.begin);
        block.coefficients = coefficients_.data();
        block.typed = typed() ? 1 : 0;
        block.out =
            worker.values[size(out_.id)] == nullptr ? nullptr : worker.value(out_, nodes.begin);
        if (x_.needs_gradient && worker.edge_gradient != nullptr) {
            block.g = worker.gradient(out_, nodes.begin);
            block.dx = worker.gradient(x_, nodes.begin);
            block.accumulate = x_.accumulate ? 1 : 0;
        }
        return block;
    }

    const ContractionSpec& spec_;
    const Operand &x_, &out_;
    AlignedArray<T> coefficients_;
    std::vector<T> value_;
    Monomials<T> monomials_;
    ContractionFunction<T> forward_ = nullptr, backward_ = nullptr;
};

template <typename T>
class CudaContraction : public CudaOp<T> {
public:
    explicit CudaContraction(const ContractionSpec& spec)
        : spec_(spec),
          x_(spec.x),
          out_(spec.out),
          forward_(spec, "forward", widths()),
          backward_(spec, "backward", widths()) {}

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        forward_.prepare(kernels);
        backward_.prepare(kernels);
        const AlignedArray<T> coefficients = spec_.coefficients<T>();
        coefficients_.upload(coefficients.data(), coefficients.size(), stream);
    }

    void forward(CudaWorker<T>& worker, Range nodes) const override {
        CudaArguments arguments = this->arguments(worker, nodes);
        arguments.set(CudaArgument::out, worker.value(out_, nodes.begin));
        forward_.launch(*worker.stream, arguments);
    }

    void backward(CudaWorker<T>& worker, Range nodes) const override {
        CudaArguments arguments = this->arguments(worker, nodes);
        arguments.set(CudaArgument::g, worker.gradient(out_, nodes.begin));
        arguments.set(CudaArgument::dx, worker.gradient(x_, nodes.begin));
        arguments.set(CudaArgument::n_adds, std::int64_t(x_.accumulate ? 1 : 0));
        backward_.launch(*worker.stream, arguments);
    }

private:
    CudaPassKernel::Widths widths() const {
        return {{"x", x_.rows.width}, {"w", spec_.width}, {"out", out_.rows.width}};
    }

    CudaArguments arguments(const CudaWorker<T>& worker, Range nodes) const {
        CudaArguments arguments;
        using A = CudaArgument;
        arguments.set(A::n_rows, nodes.end - nodes.begin);
        arguments.set(A::n_types, spec_.num_sets);
        arguments.set(A::types, worker.types + nodes.begin);
        arguments.set(A::x, worker.value(x_, nodes.begin));
        arguments.set(A::w, coefficients_.data());
        return arguments;
    }

    const ContractionSpec& spec_;
    const Operand &x_, &out_;
    CudaPassKernel forward_, backward_;
    DeviceArray<T> coefficients_;  // [sets][polynomials][stride]
};

const RegisterOp<ContractionSpec, CpuContraction, CudaContraction> registered{"contraction"};

}  // namespace

}  // namespace mdcg
