#include <string>
#include <vector>

#include "core/integers.hpp"
#include "engine/cuda/cuda_op.hpp"
#include "engine/cuda/edges/polynomial_table.hpp"
#include "engine/error.hpp"
#include "engine/ops/pair/edge_sum.hpp"
#include "engine/rows.hpp"
#include "kernels/edge_sum.hpp"

namespace mdcg {

namespace {

constexpr int THREADS = 128;

template <typename T>
class CudaEdgeSum : public CudaOp<T> {
public:
    explicit CudaEdgeSum(const EdgeSumSpec& spec)
        : spec_(spec),
          out_(spec.out),
          columns_(columns(spec.out.rows.blocks[0].mul)),
          table_(spec.name, spec.inner, columns_, TableContent::kWeights, Table::UNITS_DEGREE,
                 Table::limit(spec.inner, true)) {
        if (!spec.inner.has_table())
            throw EngineError(ErrorKind::unsupported,
                              spec.name +
                                  ": its radial network is not smooth, and GPUs need a table of "
                                  "it: use device cpu");
    }

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        const std::string defines = "#define DEGREE " + std::to_string(table_.degree()) + "\n";
        sums_ = kernels.fixed("edge_sum.cuh", "edge_sums", defines);
        gradients_ = kernels.fixed("edge_sum.cuh", "edge_sum_gradients", defines);
        r_max_.upload(spec_.radial.r_max, stream);
    }
    void on_new_list(const DeviceEdges& graph, const DeviceStream& stream) override {
        table_.on_new_list(graph, stream);
    }
    void forward(CudaWorker<T>& worker, Range) const override { launch(sums_, worker); }
    void backward(CudaWorker<T>& worker, Range) const override { launch(gradients_, worker); }

private:
    using Table = PolynomialTable<T>;
    static WeightColumns columns(int outputs) {
        WeightColumns found;
        for (int k = 0; k < outputs; ++k) found.columns.push_back(k);
        found.width = ceil_div(outputs, row_align<T>()) * row_align<T>();
        return found;
    }
    // A warp for each receiver.
    void launch(const CudaFunction& function, const CudaWorker<T>& worker) const {
        const DeviceEdges& graph = *worker.edges;
        const RadialSpec& spec = spec_.radial;
        EdgeSumArguments<T> a{};
        a.num_receivers = graph.num_local;
        a.num_types = spec.num_types;
        a.typed = spec.r_max.size() > 1;
        a.tanh_square = spec_.tanh_square;
        a.row_ptr = graph.row_ptr;
        a.num_active = graph.num_active;
        a.active = graph.active;
        a.types = graph.types;
        a.sender_type = graph.sender_type;
        a.length = graph.length;
        a.unit = static_cast<const T*>(graph.unit);
        a.r_max = r_max_.data();
        a.power = spec.functions.cutoff_on_basis ? 0.0 : spec.functions.cutoff_power;
        a.sign = spec_.flip_edges ? -1.0 : 1.0;
        a.table = table_.data();
        a.places = table_.places();
        a.outputs = out_.rows.blocks[0].mul;
        a.columns = columns_.width;
        a.width = out_.rows.width;
        a.out = worker.value(out_);
        a.d_out = worker.with_gradient ? worker.gradient(out_) : nullptr;
        a.edge_gradient = worker.edge_gradient;
        function.launch(*worker.stream, ceil_div(32 * graph.num_local, THREADS), THREADS, a);
    }

    const EdgeSumSpec& spec_;
    const Operand& out_;
    WeightColumns columns_;
    Table table_;
    DeviceArray<double> r_max_;
    CudaFunction sums_, gradients_;
};

const RegisterOp<EdgeSumSpec, CudaEdgeSum> registered{"edge_sum"};

}  // namespace

}  // namespace mdcg
