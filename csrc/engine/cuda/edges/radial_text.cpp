#include "engine/cuda/edges/radial_text.hpp"

#include <algorithm>

#include "core/integers.hpp"
#include "engine/error.hpp"
#include "engine/rows.hpp"
#include "kernels/radial_functions.hpp"

namespace mdcg {

namespace {

// Shared memory that a block always has, and that it can have on request.
constexpr int SHARED_BYTES = 48 * 1024, MORE_SHARED_BYTES = 96 * 1024;
constexpr int EDGE_BYTES = 120;  // bytes per edge in Tile of radial_network.cuh

template <typename T>
std::int64_t padded_columns(std::int64_t items) {
    constexpr std::int64_t align = row_align<T>();
    return (items + align - 1) / align * align;
}

template <typename T>
int tile_bytes(std::int64_t widest, int edges) {
    return static_cast<int>(2 * widest * (edges + 4) * static_cast<std::int64_t>(sizeof(T)));
}

}  // namespace

template <typename T>
RadialText<T>::RadialText(const RadialSpec& spec) {
    if (!spec.powers.empty())
        throw EngineError(ErrorKind::unsupported,
                          "solid harmonics need a radial network that a table can serve on GPUs: "
                          "use device cpu");
    const BasisFunctions& functions = spec.functions;
    const std::size_t depth = spec.layers.size() - 1;
    const std::int64_t last = spec.layers.back().in, units = spec.units();
    hidden_stride = padded_columns<T>(units);
    first_stride = depth > 0 ? padded_columns<T>(spec.layers[0].out) : 0;
    sender_rows = !spec.sender_value.empty();
    receiver_rows = !spec.receiver_value.empty();

    std::int64_t widest = std::max<std::int64_t>(functions.count, units);
    for (std::size_t i = 0; i < depth; ++i)
        widest = std::max<std::int64_t>(widest, spec.layers[i].out);
    edges = 64;
    while (edges > 16 && tile_bytes<T>(widest, edges) + edges * EDGE_BYTES > SHARED_BYTES)
        edges /= 2;
    while (edges > 4 && tile_bytes<T>(widest, edges) + edges * EDGE_BYTES > MORE_SHARED_BYTES)
        edges /= 2;
    shared_bytes = tile_bytes<T>(widest, edges);
    block_bytes = shared_bytes + edges * EDGE_BYTES;
    if (block_bytes > MORE_SHARED_BYTES)
        throw EngineError(ErrorKind::unsupported, "a radial network with layers of " +
                                                      std::to_string(widest) +
                                                      " units is too wide for GPUs: use "
                                                      "device cpu");
    const std::int64_t tasks = edges / 4 * (padded_columns<T>(widest) / 4);
    threads = static_cast<int>(std::min<std::int64_t>(256, (tasks + 31) / 32 * 32));
    threads = std::max(threads, 64);

    // Appends a matrix to `weights`, and returns its position.
    const auto append = [&](std::int64_t rows, std::int64_t columns, const auto& at) {
        const auto begin = static_cast<std::int64_t>(weights.size());
        const std::int64_t stride = padded_columns<T>(columns);
        weights.resize(size(begin + rows * stride), T(0));
        for (std::int64_t i = 0; i < rows; ++i)
            for (std::int64_t j = 0; j < columns; ++j)
                weights[size(begin + i * stride + j)] = static_cast<T>(at(size(i), size(j)));
        return begin;
    };
    const auto row = [&](const std::vector<double>& source, std::int64_t count) {
        return append(1, count,
                      [&](std::size_t, std::size_t j) { return source.empty() ? 0.0 : source[j]; });
    };
    std::string places;  // a LayerPlaces of radial_network.cuh for each hidden layer
    for (std::size_t i = 0; i < depth; ++i) {
        const RadialSpec::Layer& layer = spec.layers[i];
        const auto n = size(layer.out);
        const bool normalizes = !layer.norm_weight.empty();
        const std::int64_t weight = append(layer.in, layer.out, [&](std::size_t k, std::size_t j) {
            return layer.weight[k * n + j];
        });
        const std::int64_t weight_t =
            append(layer.out, layer.in,
                   [&](std::size_t j, std::size_t k) { return layer.weight[k * n + j]; });
        places += i > 0 ? ", {" : "{";
        for (const std::int64_t number :
             {std::int64_t(layer.out), static_cast<std::int64_t>(layer.activation),
              std::int64_t(normalizes), weight, weight_t, row(layer.bias, layer.out),
              row(layer.norm_weight, layer.out), row(layer.norm_bias, layer.out),
              row({layer.factor}, 1), row({layer.epsilon}, 1), kept_items})
            places += std::to_string(number) + ", ";
        kept_items += std::int64_t(layer.out) * edges;
        places += std::to_string(kept_items) + "}";
        if (normalizes) kept_items += edges;
    }
    std::int64_t kept_last = -1;
    if (depth > 0 && !functions.cutoff_on_basis) {
        kept_last = kept_items;
        kept_items += last * edges;
    }
    const auto table = [&](const std::vector<double>& source) -> std::int64_t {
        if (source.empty()) return -1;
        const auto n = size(spec.layers[0].out);
        return append(spec.num_types, spec.layers[0].out,
                      [&](std::size_t t, std::size_t j) { return source[t * n + j]; });
    };
    const std::int64_t sender_table = table(spec.sender_table);
    const std::int64_t receiver_table = table(spec.receiver_table);

    numbers = spec.basis_values;
    numbers.resize(size(functions.count));  // Chebyshev has none
    numbers.insert(numbers.end(), spec.r_max.begin(), spec.r_max.end());
    numbers.insert(numbers.end(), spec.r_0.begin(), spec.r_0.end());

    const auto define = [&](const char* name, std::int64_t value) {
        defines += std::string("#define ") + name + " " + std::to_string(value) + "\n";
    };
    define("EDGES", edges);
    define("THREADS", threads);
    define("BASIS", functions.count);
    define("BASIS_KIND", static_cast<int>(functions.kind));
    define("TRANSFORM", static_cast<int>(functions.transform));
    define("NORMALIZED", functions.normalized);
    define("CUTOFF", functions.cutoff_start != 0 ? 2 : functions.cutoff_power != 0);
    define("CUTOFF_WHOLE", whole_power(functions.cutoff_power));
    define("CUTOFF_ON_BASIS", functions.cutoff_on_basis);
    define("TYPED_R_MAX", spec.r_max.size() > 1);
    define("LAYERS", static_cast<std::int64_t>(depth));
    define("SENDER_TABLE", sender_table);
    define("RECEIVER_TABLE", receiver_table);
    define("SENDER_ROWS", sender_rows);
    define("RECEIVER_ROWS", receiver_rows);
    define("LAST", last);
    define("CONSTANT", units - last);
    define("STRIDE", hidden_stride);
    define("ALIGN", row_align<T>());
    define("WIDEST", widest);
    define("KEPT_LAST", kept_last);
    define("KEPT_ITEMS", kept_items);
    defines += "#define HIDDEN_LAYERS " + (depth > 0 ? places : "{}") + "\n";
}

template struct RadialText<float>;
template struct RadialText<double>;

}  // namespace mdcg
