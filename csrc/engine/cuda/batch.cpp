#include "engine/cuda/batch.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/integers.hpp"
#include "core/text.hpp"
#include "engine/edges/layout.hpp"
#include "engine/error.hpp"

namespace mdcg {

namespace {

constexpr const char* SYSTEMS_TEXT = "systems.cuh";
constexpr int SYSTEM_THREADS = 256;

// What the device is told of systems.
struct SystemRows {
    double *cell, *inverse;
    int *first_node, *steps;
    std::size_t bytes;

    SystemRows(char* start, std::int64_t systems) {
        Layout parts(start, DEVICE_ALIGNMENT);
        parts.take(cell, 9 * systems);
        parts.take(inverse, 9 * systems);
        parts.take(first_node, systems + 1);
        parts.take(steps, 3 * systems);
        bytes = parts.bytes();
    }
};

}  // namespace

CudaBatch::CudaBatch(CudaKernels& kernels)
    : sort_(kernels),
      place_nodes_(kernels.fixed(SYSTEMS_TEXT, "place_nodes")),
      count_pairs_(kernels.fixed(SYSTEMS_TEXT, "count_pairs")),
      write_pairs_(kernels.fixed(SYSTEMS_TEXT, "write_pairs")),
      sum_systems_(kernels.fixed(SYSTEMS_TEXT, "sum_systems")),
      systems_(kernels.device()),
      nodes_(kernels.device()) {}

void CudaBatch::upload(const BatchPart& part, VerletSkin& watch, const DeviceStream& stream) {
    const Batch& batch = part.batch;
    const std::int64_t systems = part.end - part.first;
    host_.assign(SystemRows(nullptr, systems).bytes, 0);
    const SystemRows host(host_.data(), systems);
    for (std::int64_t s = 0; s <= systems; ++s)
        host.first_node[s] = narrow(batch.first_node[part.first + s] - part.first_node());
    for (std::int64_t s = 0; s < systems; ++s) {
        const CellSystem system = batch.system(part.first + s);
        in_system(batch, part.first + s, [&] {
            watch.needs_rebuild(batch.on_device ? 0 : system.num_nodes, system.positions,
                                system.cell, system.periodic);
        });
        for (std::int64_t k = 0; k < 3; ++k) {
            if (!watch.periodic()[size(k)]) continue;
            for (std::int64_t c = 0; c < 3; ++c) {
                host.cell[9 * s + 3 * k + c] = watch.full()[size(k)][size(c)];
                host.inverse[9 * s + 3 * c + k] = watch.inverse()[size(c)][size(k)];
            }
            // two nodes of a cell may be nearly as far apart as its planes
            host.steps[3 * s + k] = 1 + static_cast<int>(watch.reach() / watch.heights()[size(k)]);
        }
    }
    systems_.grow(host_.size());
    systems_.upload(host_.data(), host_.size(), stream);
    const SystemRows there(systems_.as<char>(), systems);
    a_.num_systems = systems;
    a_.first_node = there.first_node;
    a_.cell = there.cell;
    a_.inverse = there.inverse;
    a_.steps = there.steps;
    a_.square = watch.reach() * watch.reach();
}

void CudaBatch::make_list(const BatchPart& part, double r_max, int num_types,
                          const DeviceStream& stream, DeviceEdges& graph,
                          std::vector<std::int32_t>& node) {
    const std::int64_t nodes = part.num_nodes(), systems = part.end - part.first;
    const double* const positions = part.batch.positions + 3 * part.first_node();
    const std::int32_t* const types = part.batch.types + part.first_node();
    VerletSkin watch(r_max, 0);
    upload(part, watch, stream);
    double* given = nullptr;
    const auto lay_out = [&](char* start) {
        Layout parts(start, DEVICE_ALIGNMENT);
        parts.take(given, part.batch.on_device ? 0 : 3 * nodes);
        parts.take(a_.system, nodes);
        parts.take(work_, CudaSort::work_items(nodes));
        parts.take(energy_, systems);
        parts.take(virial_, 9 * systems);
        parts.take(finite_, systems);
        return parts.bytes();
    };
    nodes_.grow(lay_out(nullptr));
    lay_out(nodes_.as<char>());
    graph.reserve_nodes(nodes, nodes);
    a_.num_nodes = nodes;
    a_.given = part.batch.on_device ? positions : given;
    a_.positions = graph.positions;
    a_.row_ptr = graph.row_ptr;
    a_.total = graph.total;
    if (!part.batch.on_device) copy_to_device(given, positions, 24 * size(nodes), stream);
    copy_to_device(graph.types, types, 4 * size(nodes), stream);
    clear_on_device(a_.total, sizeof(*a_.total), stream);
    place_nodes_.cover(stream, nodes, SYSTEM_THREADS, a_);
    count_pairs_.cover(stream, 32 * nodes, SYSTEM_THREADS, a_);
    sort_.sum(stream, graph.row_ptr, nodes, work_);

    const auto write = [&] {
        a_.sender = graph.sender;
        a_.shift = graph.reserve_shifts();
        write_pairs_.cover(stream, 32 * nodes, SYSTEM_THREADS, a_);
    };
    std::vector<std::int32_t> numbers = graph.take_rows(
        {nullptr, narrow(part.first_node()), watch.reach(),
         "systems that are evaluated at once have", "are positions and cells in Å?", write},
        stream);
    graph.complete(types, num_types, true, stream);
    node = std::move(numbers);
}

void CudaBatch::store_sums(const BatchPart& part, const double* energies, const double* forces,
                           const double* virials, double* energy, double* virial,
                           const DeviceStream& stream) {
    const std::int64_t systems = part.end - part.first;
    const SystemSumArguments a{systems, a_.first_node, a_.positions, energies, forces,
                               virials, energy_,       virial_,      finite_};
    sum_systems_.cover(stream, 32 * systems, SYSTEM_THREADS, a);
    std::vector<int> finite(size(systems));
    copy_to_host(finite.data(), finite_, 4 * finite.size(), stream);
    const auto store = [&](double* target, const double* found, std::int64_t width) {
        if (target == nullptr) return;
        const auto copy = part.batch.on_device ? &copy_on_device : &copy_to_host;
        copy(target + width * part.first, found, 8 * size(width * systems), stream);
    };
    store(energy, energy_, 1);
    store(virial, virial_, 9);
    stream.synchronize();
    const auto bad = std::find(finite.begin(), finite.end(), 0);
    if (bad != finite.end())
        throw EngineError(
            ErrorKind::numeric,
            "positions, energy, forces or virial of system " +
                std::to_string(part.batch.number(part.first + (bad - finite.begin()))) +
                " of the batch are not finite numbers: atoms may be too close, or "
                "the model does not know such structures");
}

}  // namespace mdcg
