R"CUDA(
// Products of rows and small matrices: c[row] (+)= a[row] @ b, several of them in one launch: what
// gemm_plain.cuh and gemm_tensor.cuh share. Every sum runs over the shared dimension in order,
// whatever the tile is: a row of c does not depend on the rows beside it.

constexpr int LANE_ITEMS = 16 / sizeof(T);  // what one access loads or stores
struct alignas(16) Pack {
    T v[LANE_ITEMS];
};

// Row r, counted in components: component r % batch of node r / batch, or of that place in a list.
struct Product {
    const T* a;
    const T* b;  // [depth][columns]
    T* c;
    const int* list;       // nodes; null: 0, 1, 2, ..
    int a_width, c_width;  // items from node to node
    int a_step, c_step;    // and from component to component
    int batch, depth;
    int columns;  // a multiple of 64 bytes
    int rows;
    int first_block;
    int add;
};

constexpr int MAX_PRODUCTS = 16;
struct Products {
    Product product[MAX_PRODUCTS];
    int count;
};

INLINE Long row_start(const Product& p, int row, int width, int step) {
    int node = row, component = 0;
    if (p.batch > 1) {
        node = unsigned(row) / unsigned(p.batch);
        component = row - node * p.batch;
    }
    if (p.list != nullptr) node = p.list[node];
    return Long(node) * width + Long(component) * step;
}

// So many bytes to shared memory, and zeros up to 16, that the thread does not wait for.
INLINE void start_copy(T* to, const T* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     unsigned(__cvta_generic_to_shared(to))),
                 "l"(from), "r"(bytes)
                 : "memory");
}
INLINE void end_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

INLINE const Product& product_of_block(const Products& all) {
    int number = 0;
    while (number + 1 < all.count && int(blockIdx.x) >= all.product[number + 1].first_block)
        ++number;
    return all.product[number];
}
// Neighbouring blocks share rows of a.
template <typename S>
INLINE void find_tile(const Product& p, int& first_row, int& first_column) {
    const int across = (p.columns + S::COLUMNS - 1) / S::COLUMNS;
    const int block = blockIdx.x - p.first_block;
    first_row = block / across * S::ROWS;
    first_column = block % across * S::COLUMNS;
}
)CUDA"
