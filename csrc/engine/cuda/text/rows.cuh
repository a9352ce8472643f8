R"CUDA(
// Rows that other processes get and give; a warp for each.

struct GatherRows {
    const T* rows;
    T* out;           // [count]
    const int* node;  // [count]; -1: zeros
    Long count;
    int width;
};
extern "C" __global__ void __launch_bounds__(256) gather_rows(const GatherRows p) {
    const Long i = warp_number();
    if (i >= p.count) return;
    const int node = p.node[i];
    EACH_PACK(p.width)
        put(p.out + i * p.width + j, node < 0 ? Pack{} : load(p.rows + Long(node) * p.width + j));
}

// What came back for one node: added in the order of the list.
struct AddRows {
    T* rows;
    const T* received;
    const int *node, *first, *place;  // [count], [count + 1], rows of `received`
    Long count;
    int width;
};
extern "C" __global__ void __launch_bounds__(256) add_rows(const AddRows p) {
    const Long i = warp_number();
    if (i >= p.count) return;
    EACH_PACK(p.width) {
        T* const out = p.rows + Long(p.node[i]) * p.width + j;
        Pack sum = load(out);
        for (int k = p.first[i]; k < p.first[i + 1]; ++k) {
            const Pack more = load(p.received + Long(p.place[k]) * p.width + j);
#pragma unroll
            EACH_ITEM sum.v[i] += more.v[i];
        }
        put(out, sum);
    }
}
)CUDA"
