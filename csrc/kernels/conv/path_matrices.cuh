// Path matrices of the edges of a batch. For one edge, a path is the sparse matrix
// M_ca = sum_b w3j_abc y_b. Its nonzeros do not depend on the channel: the warps of a block
// evaluate them once per edge, a lane per edge, into shared memory.
#pragma once
#include "kernels/static_loops.cuh"
#include "kernels/vectors.cuh"

// Entry of a path matrix: out[c] += sign * nonzero * x[a]; the components and the nonzero are
// counted from the path's first. The entries of a path are sorted by c.
struct Entry {
    short a, c, nonzero, sign;
};

// Term of a nonzero: coefficient * y[attribute].
struct Term {
    int attribute;
    T coefficient;
};

// Returns a number of items rounded up to whole 16-byte words.
constexpr int whole_quads(int items) { return items > 0 ? (items + QUAD - 1) / QUAD * QUAD : QUAD; }

// Returns nonzero number ITEM, whose terms in R::TERMS begin at R::FIRST_TERM[ITEM]. y(b) is
// attribute b of the edge.
template <typename R, int ITEM, typename Attributes>
MDCG_INLINE T nonzero_of(const Attributes& y) {
    constexpr int FIRST = R::FIRST_TERM[ITEM];
    T sum = 0;
    each_between<FIRST, R::FIRST_TERM[ITEM + 1]>([&](auto position) {
        constexpr Term term = R::TERMS[position];
        const T product = term.coefficient * y(term.attribute);
        sum = position == FIRST ? product : sum + product;
    });
    return sum;
}

// Writes this warp's part of the nonzeros to the row of an edge.
template <typename Kernel, typename Attributes>
MDCG_INLINE void write_path_matrices(const Attributes& y, T* row, int warp) {
    each<Kernel::BLOCK_WARPS>([&](auto number) {
        constexpr int WARP = number, FIRST = Kernel::FIRST_QUAD[WARP];
        if (warp != WARP) return;
        each_between<FIRST, Kernel::FIRST_QUAD[WARP + 1]>([&](auto position) {
            constexpr int FIRST_ITEM = position * QUAD;
            Quad quad;
            each<QUAD>([&](auto k) { quad.v[k] = nonzero_of<Kernel, FIRST_ITEM + k>(y); });
            *(Quad*)(row + FIRST_ITEM) = quad;
        });
    });
}

// Reads N nonzeros of a path, whole 16-byte words.
template <int N>
MDCG_INLINE void load_nonzeros(T (&to)[N], const T* from) {
#pragma unroll
    for (int n = 0; n < N; n += QUAD) {
        const Quad quad = *(const Quad*)(from + n);
#pragma unroll
        for (int j = 0; j < QUAD; ++j) to[n + j] = quad.v[j];
    }
}
