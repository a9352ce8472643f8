R"CUDA(
// 16 bytes of a row.
struct alignas(16) Quad {
    T v[16 / sizeof(T)];
};

struct SenderSums {
    const Quad* __restrict__ rows;  // [slots of a chunk][width], by sender
    Quad* __restrict__ target;      // [nodes][width], added to
    const int* __restrict__ sender; // [senders] node
    const int* __restrict__ row_ptr; // [senders + 1]
    const int* __restrict__ slot;    // of each row
    const double* __restrict__ length;  // of all slots
    Long senders, width;            // width in quads
};

// Sums what a chunk's slots give to each sender, in their order. Rows of dead slots may hold
// anything.
extern "C" __global__ void __launch_bounds__(256) sum_by_sender(const SenderSums p) {
    const Long i = thread_number();
    const Long s = i / p.width, c = i - s * p.width;
    if (s >= p.senders) return;
    Quad sum = {};
    const int end = p.row_ptr[s + 1];
    for (int k = p.row_ptr[s]; k < end; ++k) {
        if (p.length[p.slot[k]] >= DEAD) continue;
        const Quad row = p.rows[k * p.width + c];
#pragma unroll
        for (int j = 0; j < int(16 / sizeof(T)); ++j) sum.v[j] += row.v[j];
    }
    Quad* const to = p.target + p.sender[s] * p.width + c;
    Quad total = *to;
#pragma unroll
    for (int j = 0; j < int(16 / sizeof(T)); ++j) total.v[j] += sum.v[j];
    *to = total;
}
)CUDA"
