// Operations on rows of nodes that are written once, for hosts and devices.
//
// kernels/row_functions.hpp has a struct of arguments for each operation, whose members compute one
// row. The specification of the operation has two members that fill this struct:
//     // Sets arguments that are the same in all steps. keep(pointer, values) stores an array where
//     // the functions read it, and sets the pointer.
//     template <typename T, class Keep>
//     void prepare(Arguments<T>& a, const Keep& keep) const;
//     // Sets the rows of one pass, and calls launch(a).
//     template <typename T, class Rows, class Launch>
//     void run(const Rows& rows, Arguments<T> a, const Launch& launch) const;
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/backend/cpu/simd.hpp"
#include "engine/cuda/cuda_op.hpp"

namespace mdcg {

// The functions of a struct of arguments. If it has no backward function, the forward function also
// serves gradients.
#define MDCG_ROW_FUNCTION_OF(NAME, ARGUMENTS, MEMBER, ROW)         \
    template <typename T>                                          \
    constexpr RowFunction MEMBER##_function(const ARGUMENTS<T>&) { \
        return RowFunction::NAME;                                  \
    }
template <typename Arguments>
constexpr RowFunction backward_function(const Arguments& a) {
    return forward_function(a);
}
MDCG_ROW_FUNCTIONS(MDCG_ROW_FUNCTION_OF)
#undef MDCG_ROW_FUNCTION_OF

// The rows of some nodes in one pass.
template <class Step>
struct NodeRows {
    const Step& step;
    Range nodes;
    bool backward;

    std::int64_t count() const { return nodes.end - nodes.begin; }
    const std::int32_t* types() const { return step.types + nodes.begin; }
    auto* value(const Operand& operand) const { return rows(step.values, operand); }
    // Null if the operand needs no gradient, or in a step without a backward pass.
    auto* gradient(const Operand& operand) const {
        return operand.needs_gradient ? rows(step.gradients, operand) : nullptr;
    }

private:
    template <typename T>
    T* rows(const std::vector<T*>& first, const Operand& operand) const {
        T* const row = first[static_cast<std::size_t>(operand.id)];
        return row != nullptr ? row + nodes.begin * operand.rows.width : nullptr;
    }
};

struct OnHost {};
struct OnDevice {};

// Runs row functions on a host or a device.
template <typename T, typename Place>
class RowLauncher;

template <typename T>
class RowLauncher<T, OnHost> : public CpuOp<T> {
protected:
    using Step = Worker<T>;
    template <typename N>
    void keep(const N*& at, std::vector<N> values) {
        const auto kept = std::make_shared<std::vector<N>>(std::move(values));
        at = kept->data();
        kept_.push_back(kept);
    }
    void forget_kept() { kept_.clear(); }
    template <typename Arguments>
    static void launch(RowFunction function, const Step&, const Arguments& arguments) {
        simd<T>().row_functions[static_cast<int>(function)](&arguments);
    }

private:
    std::vector<std::shared_ptr<void>> kept_;
};

template <typename T>
class RowLauncher<T, OnDevice> : public CudaOp<T> {
public:
    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        for (std::size_t f = 0; f < functions_.size(); ++f)
            functions_[f] = kernels.fixed("nodes.cuh", INFO[f].name);
        upload(stream);
    }

protected:
    using Step = CudaWorker<T>;
    template <typename N>
    void keep(const N*& at, std::vector<N> values) {
        const auto kept = std::make_shared<DeviceArray<N>>();
        kept_.push_back(kept);
        uploads_.push_back([kept, &at, values = std::move(values)](const DeviceStream& stream) {
            kept->upload(values, stream);
            at = kept->data();
        });
    }
    void forget_kept() { kept_.clear(); }
    void upload(const DeviceStream& stream) {
        for (const auto& each : uploads_) each(stream);
        uploads_.clear();
    }
    template <typename Arguments>
    void launch(RowFunction function, const Step& step, const Arguments& arguments) const {
        const auto f = static_cast<std::size_t>(function);
        functions_[f].cover(*step.stream, INFO[f].threads * arguments.count, 256, arguments);
    }

private:
    struct Info {
        const char* name;
        std::int64_t threads;  // threads per row
    };
#define MDCG_ROW_INFO(NAME, ARGUMENTS, MEMBER, ROW) Info{#NAME, THREADS_OF_A_##ROW},
    static constexpr std::int64_t THREADS_OF_A_WarpRow = 32, THREADS_OF_A_ThreadRow = 1,
                                  THREADS_OF_A_ChannelRow = 1;
    static constexpr std::array INFO{MDCG_ROW_FUNCTIONS(MDCG_ROW_INFO)};
#undef MDCG_ROW_INFO
    std::array<CudaFunction, INFO.size()> functions_;
    std::vector<std::shared_ptr<void>> kept_;
    std::vector<std::function<void(const DeviceStream&)>> uploads_;
};

template <typename T, typename Place, typename Spec, template <typename> class Arguments>
class RowOp : public RowLauncher<T, Place> {
    using Step = typename RowLauncher<T, Place>::Step;

public:
    explicit RowOp(const Spec& spec) : spec_(spec) { load_tensors(); }
    void forward(Step& step, Range nodes) const override { run({step, nodes, false}); }
    void backward(Step& step, Range nodes) const override { run({step, nodes, true}); }

protected:
    // Takes the tensors of the specification, which may have changed.
    void load_tensors() {
        this->forget_kept();
        arguments_ = {};
        spec_.prepare(arguments_, [this](auto& at, auto values) { this->keep(at, values); });
    }

private:
    void run(const NodeRows<Step>& rows) const {
        Arguments<T> arguments = arguments_;
        arguments.count = rows.count();
        spec_.run(rows, arguments, [&](const Arguments<T>& a) {
            this->launch(rows.backward ? backward_function(a) : forward_function(a), rows.step, a);
        });
    }

    const Spec& spec_;
    Arguments<T> arguments_{};
};

template <typename Spec, template <typename> class Arguments>
struct RowOps {
    template <typename T>
    struct Host : RowOp<T, OnHost, Spec, Arguments> {
        using RowOp<T, OnHost, Spec, Arguments>::RowOp;
        void on_new_inputs() override { this->load_tensors(); }
    };
    template <typename T>
    struct Device : RowOp<T, OnDevice, Spec, Arguments> {
        using RowOp<T, OnDevice, Spec, Arguments>::RowOp;
        void on_new_inputs(const DeviceStream& stream) override {
            this->load_tensors();
            this->upload(stream);
        }
    };
};

// An operation of two values, whose rows and gradients its arguments name x, y, out, g, dx and dy.
struct TwoInputsSpec : OpSpec {
    const Operand &x, &y, &out;

    explicit TwoInputsSpec(const LayerEntry& given, const char* second = "y")
        : OpSpec(given),
          x(input("x", saved_for_backward)),
          y(input(second, saved_for_backward)),
          out(output("out")) {}

    template <class Arguments, class Rows, class Launch>
    void run(const Rows& rows, Arguments a, const Launch& launch) const {
        a.x = rows.value(x);
        a.y = rows.value(y);
        a.out = rows.value(out);
        a.g = rows.gradient(out);
        a.dx = rows.gradient(x);
        a.dy = rows.gradient(y);
        a.add_x = x.accumulate;
        a.add_y = y.accumulate;
        launch(a);
    }
};

// const RegisterRowOp<ScaleSpec, Scale> scale{"scale"};
template <typename Spec, template <typename> class Arguments>
using RegisterRowOp = RegisterOp<Spec, RowOps<Spec, Arguments>::template Host,
                                 RowOps<Spec, Arguments>::template Device>;

}  // namespace mdcg
