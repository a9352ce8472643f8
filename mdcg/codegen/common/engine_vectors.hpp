// Vectors of the engine's kernels, as wide as the compiler's target has them; T is set above this.
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define MDCG_VECTOR_BYTES 64
#elif defined(__AVX__)
#define MDCG_VECTOR_BYTES 32
#else
#define MDCG_VECTOR_BYTES 16
#endif

#define MDCG_INLINE static inline __attribute__((always_inline))

constexpr int L = MDCG_VECTOR_BYTES / sizeof(T);  // lanes

typedef T V __attribute__((vector_size(MDCG_VECTOR_BYTES), may_alias));

MDCG_INLINE V splat(T s) { return s - V{}; }
MDCG_INLINE V load(const T* p) { return *(const V*)p; }
MDCG_INLINE void store(T* p, V v) { *(V*)p = v; }
