// What layers without edges share on devices.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cuda/worker.hpp"
#include "engine/layers/node_fields.hpp"

namespace mdcg {

// Text of all their kernels, to be compiled once.
const char* node_text();
// Threads of a block in all of them.
constexpr int NODE_THREADS = 256;

// Blocks for so many threads, or for so many warps.
inline std::int64_t thread_blocks(std::int64_t threads) {
    return (threads + NODE_THREADS - 1) / NODE_THREADS;
}
inline std::int64_t warp_blocks(std::int64_t warps) { return thread_blocks(32 * warps); }

// Items of 16 bytes.
template <typename T>
constexpr std::int64_t pack_items() {
    return static_cast<std::int64_t>(16 / sizeof(T));
}

// A constant array on the device.
template <typename N>
class CudaArray {
public:
    void upload(const std::vector<N>& source, const CudaStream& stream) {
        memory_ = std::make_shared<CudaMemory>(stream.device());
        memory_->reserve(std::max<std::size_t>(1, source.size() * sizeof(N)));
        memory_->upload(source.data(), source.size() * sizeof(N), stream);
        stream.synchronize();
    }
    const N* data() const { return memory_->template as<N>(); }

private:
    std::shared_ptr<CudaMemory> memory_;
};

// First row of the range.
template <typename T>
T* value_rows(const CudaWorker<T>& worker, const Operand& operand, Range nodes) {
    return worker.value(operand) + nodes.begin * operand.rows.width;
}
template <typename T>
T* gradient_rows(const CudaWorker<T>& worker, const Operand& operand, Range nodes) {
    return worker.gradient(operand) + nodes.begin * operand.rows.width;
}
// The same where a gradient is wanted, else null.
template <typename T>
T* wanted_rows(const CudaWorker<T>& worker, const Operand& operand, Range nodes) {
    return operand.needs_gradient ? gradient_rows(worker, operand, nodes) : nullptr;
}

// One operand in, one out.
template <typename T>
class CudaUnaryLayer : public CudaLayer<T> {
public:
    explicit CudaUnaryLayer(const LayerSpec& spec)
        : x_(spec.operand("x")), out_(spec.operand("out")) {}
    std::vector<Operand*> inputs() override { return {&x_}; }
    std::vector<Operand*> outputs() override { return {&out_}; }

protected:
    Operand x_, out_;
};

}  // namespace mdcg
