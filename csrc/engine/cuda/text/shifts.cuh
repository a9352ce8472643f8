R"CUDA(
// Shifts of slots out of the few that there are.
struct ImageShifts {
    const int* image;     // [count]
    const double* table;  // [images][3]
    double* shift;        // [count][3]
    Long count;
};

extern "C" __global__ void __launch_bounds__(256) image_shifts(const ImageShifts p) {
    for (Long i = thread_number(); i < 3 * p.count; i += thread_count())
        p.shift[i] = p.table[3 * p.image[i / 3] + i % 3];
}
)CUDA"
