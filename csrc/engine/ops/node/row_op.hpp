// Operations on rows of nodes that are written once: kernels/row_functions.hpp has the functions,
// and an operation, templated on where it runs, sets their arguments.
#pragma once

#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "engine/backend/cpu/simd.hpp"
#include "engine/cuda/cuda_op.hpp"
#include "engine/cuda/node_kernels.hpp"

namespace mdcg {

struct OnHost {};
struct OnDevice {};

// The base of an operation. `Step` is what it sees of an evaluation; a `Constants<N>` member keeps
// an array where the functions read it.
template <typename T, typename Place>
class RowOp;

template <typename T>
class RowOp<T, OnHost> : public CpuOp<T> {
protected:
    using Step = Worker<T>;
    template <typename N>
    class Constants {
    public:
        Constants(RowOp&, std::vector<N> values) : values_(std::move(values)) {}
        const N* data() const { return values_.data(); }

    private:
        std::vector<N> values_;
    };

    // Computes all rows of the arguments, one of the structs of kernels/row_functions.hpp.
    template <typename Arguments>
    static void run(RowFunction function, const Step&, const Arguments& arguments) {
        simd<T>().row_functions[static_cast<int>(function)](&arguments);
    }
};

template <typename T>
class RowOp<T, OnDevice> : public CudaOp<T> {
public:
    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        for (std::size_t f = 0; f < functions_.size(); ++f)
            functions_[f] = kernels.fixed(NODE_KERNELS, INFO[f].name);
        for (const auto& upload : uploads_) upload(stream);
        uploads_.clear();
    }

protected:
    using Step = CudaWorker<T>;
    template <typename N>
    class Constants {
    public:
        Constants(RowOp& op, std::vector<N> values) {
            op.uploads_.push_back([this, values = std::move(values)](const DeviceStream& stream) {
                array_.upload(values, stream);
            });
        }
        Constants(const Constants&) = delete;
        Constants& operator=(const Constants&) = delete;
        const N* data() const { return array_.data(); }

    private:
        DeviceArray<N> array_;
    };

    template <typename Arguments>
    void run(RowFunction function, const Step& step, const Arguments& arguments) const {
        const auto f = static_cast<std::size_t>(function);
        functions_[f].launch(*step.stream, thread_blocks(INFO[f].threads * arguments.count),
                             NODE_THREADS, arguments);
    }

private:
    struct Info {
        const char* name;
        std::int64_t threads;  // of a row
    };
#define MDCG_ROW_INFO(NAME, ARGUMENTS, MEMBER, ROW) Info{#NAME, THREADS_OF_A_##ROW},
    static constexpr std::int64_t THREADS_OF_A_WarpRow = 32, THREADS_OF_A_ThreadRow = 1;
    static constexpr std::array INFO{MDCG_ROW_FUNCTIONS(MDCG_ROW_INFO)};
#undef MDCG_ROW_INFO
    std::array<CudaFunction, INFO.size()> functions_;
    std::vector<std::function<void(const DeviceStream&)>> uploads_;
};

// Registers an operation for hosts and devices:
//     const RegisterRowOp<ScaleSpec, ScaleOp> registered{"scale"};
template <typename Spec, template <typename, typename> class Op>
class RegisterRowOp {
public:
    explicit RegisterRowOp(const char* type) : host_(type), device_(type) {}

private:
    template <typename T>
    using Host = Op<T, OnHost>;
    template <typename T>
    using Device = Op<T, OnDevice>;
    RegisterOp<Spec, Host> host_;
    RegisterOp<Spec, Device> device_;
};

}  // namespace mdcg
