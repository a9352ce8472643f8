#include <stdint.h>
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
typedef T V __attribute__((vector_size(VECTOR_BYTES), may_alias));
constexpr int L = VECTOR_BYTES / sizeof(T);
static inline __attribute__((always_inline)) V splat(T value) { return value - V{}; }

typedef mdcg::ContractionBlock<T> Block;
