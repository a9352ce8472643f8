// Loops that are unrolled while templates are instantiated, so that the number of an iteration is a
// constant expression. NOTES: `#pragma unroll` comes too late where the number selects entries of a
// constexpr table: the compiler then keeps the arrays that these entries index in local memory.
// Where a pragma follows `if constexpr`, braces must enclose it: NVRTC 13 drops what comes after
// it. Lambdas take no references to arrays whose size is a constant of the enclosing
// function: the front end of NVRTC 13.0 crashes.
#pragma once

// A number as a type: in a lambda with a parameter `auto index`, `constexpr int i = index;` is
// valid. Lambdas inside that lambda must use the copy i.
template <int I>
struct Index {
    static constexpr int value = I;
    constexpr __device__ operator int() const { return I; }
};

// Calls body(Index<BEGIN>()), ..., body(Index<END - 1>()).
template <int BEGIN, int END, typename Body>
static __device__ __forceinline__ void each_between(const Body& body) {
    if constexpr (END - BEGIN > 4) {  // halves, so that templates are not nested deeply
        constexpr int MIDDLE = BEGIN + (END - BEGIN) / 2;
        each_between<BEGIN, MIDDLE>(body);
        each_between<MIDDLE, END>(body);
    } else {
        if constexpr (END - BEGIN > 0) body(Index<BEGIN>());
        if constexpr (END - BEGIN > 1) body(Index<BEGIN + 1>());
        if constexpr (END - BEGIN > 2) body(Index<BEGIN + 2>());
        if constexpr (END - BEGIN > 3) body(Index<BEGIN + 3>());
    }
}

// Calls body(Index<0>()), ..., body(Index<N - 1>()).
template <int N, typename Body>
static __device__ __forceinline__ void each(const Body& body) {
    each_between<0, N>(body);
}
