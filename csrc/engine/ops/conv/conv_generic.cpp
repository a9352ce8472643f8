#include "engine/ops/conv/conv_generic.hpp"

#include <algorithm>

#include "core/integers.hpp"
#include "engine/edges/layout.hpp"

namespace mdcg {

template <typename T>
GenericConv<T>::GenericConv(const ConvSpec& spec) : description_(spec.description) {
    const ConvDescription& description = spec.description;
    for (const GenericTerm<double>& term : description.terms)
        terms_.push_back({term.b, static_cast<T>(term.value)});
    info_ = {MDCG_CONV_ABI,
             sizeof(T),
             64,
             static_cast<std::int64_t>(lay_out(nullptr).bytes),
             description.x.width,
             description.out.width,
             description.weights.width};
}

template <typename T>
typename GenericConv<T>::Scratch GenericConv<T>::lay_out(char* start) const {
    Scratch scratch;
    Layout layout(start);
    const auto pairs = static_cast<std::int64_t>(description_.pairs.size());
    layout.take(scratch.weights, TILE * description_.weights.width);
    layout.take(scratch.slopes, TILE * description_.weights.width);
    layout.take(scratch.d_weights, TILE * description_.weights.width);
    layout.take(scratch.coefficients, TILE * pairs);
    layout.take(scratch.d_coefficients, pairs);
    scratch.bytes = layout.bytes();
    return scratch;
}

template <typename T>
void GenericConv<T>::fill(const ConvBlock<T>& block, std::int64_t capacity, std::int64_t first,
                          std::int64_t count, bool backward, const Scratch& scratch) const {
    block.fill_weights(block.weights, tile(first, count), scratch.weights,
                       backward && block.add_gradient == nullptr ? scratch.slopes : nullptr);
    const auto pairs = static_cast<std::int64_t>(description_.pairs.size());
    for (const GenericPath& path : description_.paths)
        for (std::int32_t i = path.pair_begin; i < path.pair_end; ++i) {
            const GenericPair& pair = description_.pairs[size(i)];
            for (std::int64_t e = 0; e < count; ++e) {
                T total = T(0);
                for (std::int32_t t = pair.term_begin; t < pair.term_end; ++t) {
                    const GenericTerm<T>& term = terms_[size(t)];
                    total += term.value *
                             block.harmonics[(path.harmonic + term.b) * capacity + first + e];
                }
                scratch.coefficients[e * pairs + i] = total;
            }
        }
}

template <typename T>
void GenericConv<T>::forward(const ConvBlock<T>& block, std::int64_t capacity) const {
    const Scratch scratch = lay_out(block.scratch);
    const SimdTable<T>& kernels = simd<T>();
    const auto pairs = static_cast<std::int64_t>(description_.pairs.size());
    for (std::int64_t first = 0; first < block.num_edges; first += TILE) {
        const std::int64_t count = std::min(TILE, block.num_edges - first);
        fill(block, capacity, first, count, false, scratch);
        for (std::int64_t e = 0; e < count; ++e) {
            const T* x = block.x + block.sender[first + e] * info_.x_width;
            T* out = block.out + block.receiver[first + e] * info_.out_width;
            const T* weights = scratch.weights + e * info_.weight_width;
            for (const GenericPath& path : description_.paths) {
                kernels.conv_forward(path, description_.pairs.data(),
                                     scratch.coefficients + e * pairs + path.pair_begin, weights, x,
                                     out);
                weights += path.stride;
            }
        }
    }
}

template <typename T>
void GenericConv<T>::backward(const ConvBlock<T>& block, std::int64_t capacity) const {
    const SimdTable<T>& kernels = simd<T>();
    const Scratch scratch = lay_out(block.scratch);
    const auto pairs = static_cast<std::int64_t>(description_.pairs.size());
    const std::int64_t width = info_.weight_width;
    const std::int64_t rows = (description_.l_max + 1) * (description_.l_max + 1);
    std::fill_n(block.d_harmonics, rows * capacity, T(0));
    std::fill_n(block.d_length, capacity, T(0));
    for (std::int64_t first = 0; first < block.num_edges; first += TILE) {
        const std::int64_t count = std::min(TILE, block.num_edges - first);
        fill(block, capacity, first, count, true, scratch);
        for (std::int64_t e = 0; e < count; ++e) {
            const T* x = block.x + block.sender[first + e] * info_.x_width;
            const T* g = block.g + block.receiver[first + e] * info_.out_width;
            T* dx =
                block.dx == nullptr ? nullptr : block.dx + block.sender[first + e] * info_.x_width;
            const T* weights = scratch.weights + e * width;
            T* d_weights = scratch.d_weights + e * width;
            for (const GenericPath& path : description_.paths) {
                if (path.pair_begin == path.pair_end) {
                    std::fill_n(d_weights, path.stride, T(0));
                } else {
                    kernels.conv_backward(path, description_.pairs.data(),
                                          scratch.coefficients + e * pairs + path.pair_begin,
                                          weights, x, g, d_weights, dx, scratch.d_coefficients);
                    for (std::int32_t i = path.pair_begin; i < path.pair_end; ++i) {
                        const GenericPair& pair = description_.pairs[size(i)];
                        const T d = scratch.d_coefficients[i - path.pair_begin];
                        for (std::int32_t t = pair.term_begin; t < pair.term_end; ++t) {
                            const GenericTerm<T>& term = terms_[size(t)];
                            block.d_harmonics[(path.harmonic + term.b) * capacity + first + e] +=
                                term.value * d;
                        }
                    }
                }
                weights += path.stride;
                d_weights += path.stride;
            }
        }
        if (block.add_gradient != nullptr) {
            block.add_gradient(block.weights, tile(first, count), scratch.d_weights);
            continue;
        }
        for (std::int64_t e = 0; e < count; ++e)
            block.d_length[first + e] =
                kernels.dot(width, scratch.slopes + e * width, scratch.d_weights + e * width);
    }
}

template class GenericConv<float>;
template class GenericConv<double>;

}  // namespace mdcg
