#include "engine/ops/node/linear.hpp"

#include <algorithm>
#include <numeric>

namespace mdcg {

LinearSpec::LinearSpec(const LayerEntry& given) : OpSpec(given) {
    can_add = true;
    const auto tensor = [this](const Fields& from, const char* key, std::vector<std::int64_t> shape,
                               bool& typed) {
        typed = from.tensor(key).shape.size() == shape.size() + 1;
        if (typed) shape.insert(shape.begin(), num_types);
        return &from.tensor(key, shape);
    };
    for (const Fields& from : fields.objects("paths")) {
        Path path{};
        path.in = block_index(from, "in", x);
        path.out = block_index(from, "out", out);
        const Block &a = x.rows.blocks[path.in], &b = out.rows.blocks[path.out];
        if (a.l != b.l)
            from.fail("goes from " + block_text(a) + " to " + block_text(b) +
                      ", expected irreps of one degree");
        path.weight = tensor(from, "weight", {a.mul, b.mul}, path.typed);
        input_tensors.push_back(path.weight);
        paths.push_back(path);
    }
    for (const Fields& from : fields.objects("bias")) {
        Bias bias{};
        bias.out = block_index(from, "out", out);
        const Block& block = out.rows.blocks[bias.out];
        if (block.l != 0)
            from.fail("adds to " + block_text(block) + ", expected a block of scalars");
        bias.value = tensor(from, "value", {block.mul}, bias.typed);
        input_tensors.push_back(bias.value);
        biases.push_back(bias);
    }
    std::stable_sort(paths.begin(), paths.end(),
                     [](const Path& a, const Path& b) { return a.out < b.out; });
    by_in.resize(paths.size());
    std::iota(by_in.begin(), by_in.end(), std::size_t(0));
    std::stable_sort(by_in.begin(), by_in.end(),
                     [this](std::size_t a, std::size_t b) { return paths[a].in < paths[b].in; });
}

}  // namespace mdcg
