#include "engine/cuda/step_results.hpp"

#include <algorithm>

#include "core/integers.hpp"
#include "kernels/row_sums.hpp"

namespace mdcg {

namespace {

std::int64_t blocks_of(std::int64_t rows) { return ceil_div(rows, SUM_ROWS); }

std::int64_t item_of(const StepResults::Part& part) {
    return static_cast<std::int64_t>(part.offset / 8);
}

}  // namespace

StepResults::StepResults(CudaKernels& kernels)
    : sum_(kernels.fixed("row_sums.cuh", "sum_rows")),
      copy_(kernels.fixed("copies.cuh", "copy_items")),
      device_(kernels.device()),
      host_(kernels.device()) {}

void StepResults::reserve(std::int64_t local, std::int64_t nodes, const DeviceStream& stream) {
    if (host_.bytes() > 0 && local == num_local_ && nodes == num_nodes_) return;
    std::size_t end = 0;
    const auto part = [&](std::int64_t count) {
        const Part found{end, 8 * size(count)};
        end += (found.bytes + 255) / 256 * 256;
        return found;
    };
    flags = part(1);
    energies = part(local);
    energy_sums = part(blocks_of(local));
    virial_sums = part(9 * blocks_of(nodes));
    forces = part(3 * nodes);
    virials = part(9 * nodes);
    device_.grow(end);
    clear_on_device(device_.as<char>(), end, stream);  // gaps between parts are copied, too
    host_.grow(end);
    num_local_ = local;
    num_nodes_ = nodes;
}

void StepResults::begin(const double* from, const PlacedNodes& placed, const DeviceEdges& graph,
                        const DeviceStream& stream) const {
    CopyArguments a{};
    a.from = from;
    a.to = graph.positions;
    a.count = from != nullptr ? 3 * graph.num_nodes : 0;
    a.placed = placed;
    a.cleared = on_device<double>(flags);
    a.num_cleared = item_of(energy_sums);
    a.marks = graph.active_rows;
    a.num_marks = graph.num_rows();
    launch_copy(a, stream);
}

void StepResults::sum_energies(const DeviceStream& stream) const {
    sum(energies, num_local_, 1, energy_sums, stream);
}

void StepResults::sum_virials(const DeviceStream& stream) const {
    sum(virials, num_nodes_, 9, virial_sums, stream);
}

void StepResults::sum(const Part& rows, std::int64_t count, int width, const Part& out,
                      const DeviceStream& stream) const {
    const RowSumArguments arguments{on_device<double>(rows), on_device<double>(out), count, width};
    sum_.launch(stream, blocks_of(count), SUM_THREADS, arguments);
}

void StepResults::download(const Part& last, const std::int32_t* node,
                           const DeviceStream& stream) const {
    CopyArguments a{};
    a.from = device_.as<double>();
    a.to = host_.as<double>();
    a.count = static_cast<std::int64_t>((last.offset + last.bytes) / 8);
    a.node = node;
    a.num_local = num_local_;
    a.num_nodes = num_nodes_;
    a.energies = item_of(energies);
    a.forces = item_of(forces);
    a.virials = item_of(virials);
    launch_copy(a, stream);
}

void StepResults::launch_copy(const CopyArguments& arguments, const DeviceStream& stream) const {
    constexpr int THREADS = 256;
    const std::int64_t most =
        std::max({arguments.count, arguments.num_cleared, arguments.num_marks});
    copy_.cover(stream, most, THREADS, arguments);
}

double StepResults::energy() const {
    double sum = 0;
    for (std::int64_t b = 0; b < blocks_of(num_local_); ++b) sum += on_host(energy_sums)[b];
    return sum;
}

std::array<double, 9> StepResults::virial() const {
    std::array<double, 9> sum{};
    for (std::int64_t b = 0; b < blocks_of(num_nodes_); ++b)
        for (std::size_t i = 0; i < 9; ++i) sum[i] += on_host(virial_sums)[9 * size(b) + i];
    return sum;
}

}  // namespace mdcg
