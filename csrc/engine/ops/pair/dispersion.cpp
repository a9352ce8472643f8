// Grimme's D3 dispersion, without edges: its two operations find all atoms and images within a long
// cutoff.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "core/integers.hpp"
#include "core/interrupt.hpp"
#include "core/text.hpp"
#include "core/threads.hpp"
#include "engine/backend/cpu/pair_kernels.hpp"
#include "engine/backend/cpu/parallel.hpp"
#include "engine/backend/cpu/simd.hpp"
#include "engine/communicator.hpp"
#include "engine/cpu_op.hpp"
#include "engine/cuda/cuda_op.hpp"
#include "engine/cuda/device_points.hpp"
#include "engine/cuda/ghosts.hpp"
#include "engine/error.hpp"
#include "engine/graph.hpp"
#include "engine/neighbors/points.hpp"
#include "engine/package/limits.hpp"

namespace mdcg {

namespace {

// Calls body(node, visit) for local nodes, which threads share. visit(run_body) calls
// run_body(type, first point, run) for the runs of points within the cutoff.
template <typename T, typename Body>
void each_atom(const Worker<T>& worker, Range nodes, double cutoff, const Body& body) {
    const Points& points = *worker.points;
    const auto run_atom = [&](std::int64_t node) {
        const Vector3 at = points.position(node);
        body(node, [&](const auto& run_body) {
            points.visit(at, cutoff, [&](int type, std::int64_t begin, std::int64_t end) {
                run_body(type, begin,
                         PairRun{end - begin,
                                 points.axis(0) + begin,
                                 points.axis(1) + begin,
                                 points.axis(2) + begin,
                                 {at[0], at[1], at[2]},
                                 cutoff * cutoff});
            });
        });
    };
    FirstError error;
    share_in_turns(worker.threads, nodes.end - nodes.begin, 8, [&](std::int64_t i, int thread) {
        if (error.failed()) return;
        try {
            if (thread == 0) poll_interrupt();
            run_atom(nodes.begin + i);
        } catch (...) {
            error.keep();
        }
    });
    error.rethrow();
}

// Writes found[b] [points] for b < `count`: number b of the row of each point's node.
template <typename T, typename Number>
void gather_points(const Worker<T>& worker, std::int64_t count, std::int64_t stride,
                   const Number* rows, std::vector<std::vector<double>>& found) {
    const std::vector<std::int32_t>& node = worker.points->node();
    found.resize(size(count));
    for (std::int64_t b = 0; b < count; ++b) {
        found[size(b)].assign(node.size() + size(Points::PADDING), 0.0);
        double* const out = found[size(b)].data();
        share(worker.threads, worker.points->count(), [&](std::int64_t p, int) {
            out[p] =
                static_cast<double>(rows[static_cast<std::int64_t>(node[size(p)]) * stride + b]);
        });
    }
}

template <typename T>
void add_force(const Worker<T>& worker, std::int64_t node, const PairForce& force) {
    for (int d = 0; d < 3; ++d) worker.forces[3 * node + d] -= force.force[d];
    for (int i = 0; i < 6; ++i) worker.virials[6 * node + i] -= force.virial[i];
}

// Reads a cutoff, which is at most r_max.
double read_reach(const Fields& fields, double r_max) {
    const double cutoff = fields.number("cutoff");
    if (!(cutoff > 0 && cutoff <= r_max))
        fields.fail("cutoff", number_text(cutoff), "a length up to r_max, " + number_text(r_max));
    return cutoff;
}

// Coordination numbers,
//     cn_i = sum_j 1 / (1 + exp(-steepness ((R_i + R_j) / r_ij - 1))),  r_ij <= cutoff,
// with radii R by type.
struct CoordinationSpec : OpSpec {
    const Operand& out = output("out");
    std::vector<double> radii;  // [T] Å
    double steepness, cutoff;

    explicit CoordinationSpec(const LayerEntry& given) : OpSpec(given) {
        forward_space = IterationSpace::points;
        radii = fields.values<double>("radii", {num_types}, Content::constants);
        steepness = fields.number("steepness");
        cutoff = read_reach(fields, given.info.r_max);
        if (out.rows.features != 1) fields.fail("out", "a value of more than a number", "1x0e");
    }
};

template <typename T>
class CpuCoordination : public CpuOp<T> {
public:
    explicit CpuCoordination(const CoordinationSpec& spec) : spec_(spec) {}

    void forward(Worker<T>& worker, Range nodes) const override {
        each_atom(worker, nodes, spec_.cutoff, [&](std::int64_t n, const auto& visit) {
            double total = 0;
            visit([&](int type, std::int64_t, const PairRun& run) {
                total += simd<double>().coordination(run, radius(worker, n, type), spec_.steepness);
            });
            *worker.value(spec_.out, n) = static_cast<T>(total);
        });
    }

    // Each atom of a pair gets its whole force, from the derivatives of both atoms.
    void backward(Worker<T>& worker, Range nodes) const override {
        std::vector<double>& slopes = slopes_;
        slopes.assign(size(worker.graph->num_nodes), 0.0);
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            slopes[size(n)] = static_cast<double>(*worker.gradient(spec_.out, n));
        if (worker.communicator != nullptr)
            worker.communicator->forward(slopes.data(), 1, sizeof(double));
        gather_points(worker, 1, 1, slopes.data(), of_points_);
        each_atom(worker, nodes, spec_.cutoff, [&](std::int64_t n, const auto& visit) {
            PairForce force;
            visit([&](int type, std::int64_t begin, const PairRun& run) {
                simd<double>().coordination_force(run, radius(worker, n, type), spec_.steepness,
                                                  slopes[size(n)], of_points_[0].data() + begin,
                                                  force);
            });
            add_force(worker, n, force);
        });
    }

private:
    double radius(const Worker<T>& worker, std::int64_t n, int type) const {
        return spec_.radii[size(worker.types[n])] + spec_.radii[size(type)];
    }

    const CoordinationSpec& spec_;
    // results of one evaluation; only the calling thread changes these vectors
    mutable std::vector<double> slopes_;
    mutable std::vector<std::vector<double>> of_points_;
};

constexpr int COLUMN_THREADS = 256;
constexpr int COLUMN_BYTES = 16;  // the shortest row that can be exchanged

template <typename T>
class CudaCoordination : public CudaOp<T> {
public:
    explicit CudaCoordination(const CoordinationSpec& spec) : spec_(spec) {}

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        forward_ = kernels.fixed("points.cuh", "coordination_forward");
        backward_ = kernels.fixed("points.cuh", "coordination_backward");
        take_column_ = kernels.fixed("points.cuh", "take_column");
        radii_.upload(spec_.radii, stream);
    }
    // Derivatives by the coordination numbers of all nodes, in rows that can be exchanged.
    std::size_t scratch_bytes(const DeviceEdges& graph) const override {
        return std::max<std::size_t>(1, size(graph.num_nodes)) * COLUMN_BYTES;
    }
    void forward(CudaWorker<T>& worker, Range) const override {
        run(forward_, worker, arguments(worker));
    }
    void backward(CudaWorker<T>& worker, Range) const override {
        const DeviceEdges& graph = *worker.edges;
        auto* const slopes = reinterpret_cast<double*>(worker.device_scratch(scratch_bytes(graph)));
        const ColumnArguments<T> column{worker.gradient(spec_.out), slopes, graph.num_local,
                                        spec_.out.rows.width, COLUMN_BYTES / int(sizeof(double))};
        take_column_.cover(*worker.stream, graph.num_local, COLUMN_THREADS, column);
        if (worker.communicator != nullptr)
            worker.ghosts->forward(*worker.communicator, reinterpret_cast<T*>(slopes),
                                   COLUMN_BYTES / int(sizeof(T)), graph, *worker.stream);
        CoordinationArguments<T> given = arguments(worker);
        given.slopes = worker.points->gather_slopes(slopes, COLUMN_BYTES / int(sizeof(double)),
                                                    *worker.stream);
        run(backward_, worker, given);
    }

private:
    CoordinationArguments<T> arguments(const CudaWorker<T>& worker) const {
        CoordinationArguments<T> out{};
        out.points = worker.points->set();
        out.radii = radii_.data();
        out.types = worker.types;
        out.out = worker.value(spec_.out);
        out.forces = worker.forces;
        out.virials = worker.virials;
        out.steepness = spec_.steepness;
        out.cutoff = spec_.cutoff;
        out.width = spec_.out.rows.width;
        return out;
    }
    static void run(const CudaFunction& kernel, const CudaWorker<T>& worker,
                    const CoordinationArguments<T>& arguments) {
        kernel.launch(*worker.stream, worker.edges->num_local, POINT_THREADS, arguments);
    }

    const CoordinationSpec& spec_;
    DeviceArray<double> radii_;
    CudaFunction forward_, backward_, take_column_;
};

const RegisterOp<CoordinationSpec, CpuCoordination, CudaCoordination> coordination{"coordination"};

// Energies of pairs,
//     E_i += -1/2 sum_j sum_ab w_ia w_jb C6_ab (s6 f6(r_ij) / r_ij^6 + 3 s8 Q_i Q_j f8(r_ij) /
//     r_ij^8),  r_ij <= cutoff,
// with the weights w of references and Q by type. Damping "bj" (Becke and Johnson):
//     f_n / r^n = 1 / (r^n + (a1 sqrt(3 Q_i Q_j) + a2)^n);
// "zero": f_n = 1 / (1 + 6 (r / (rs_n R_ij))^-m), m = 14 for r^-6 and 16 for r^-8.
struct DispersionSpec : OpSpec {
    const Operand& x = input("x", saved_for_backward);
    std::vector<double> c6;            // [T][MAX_REFERENCES][T][MAX_REFERENCES] eV Å^6
    std::vector<PairDamping> damping;  // [T][T]
    double cutoff;

    explicit DispersionSpec(const LayerEntry& given) : OpSpec(given) {
        forward_space = IterationSpace::points;
        inputs.front().gathered = inputs.front().whole_gradient = true;
        if (x.rows.features != MAX_REFERENCES) fields.fail("x", "a value of another size", "7x0e");
        const std::int64_t n = num_types;
        c6 =
            fields.values<double>("c6", {n, MAX_REFERENCES, n, MAX_REFERENCES}, Content::constants);
        cutoff = read_reach(fields, given.info.r_max);
        const auto q = fields.values<double>("q", {n}, Content::constants);
        const double s6 = fields.number("s6"), s8 = fields.number("s8");
        const std::string kind = fields.text("damping");
        if (kind != "bj" && kind != "zero") fields.fail("damping", "'" + kind + "'", "bj or zero");
        std::vector<double> radii;
        if (kind == "zero") radii = fields.values<double>("radii", {n, n}, Content::constants);
        for (std::size_t i = 0; i < q.size(); ++i)
            for (std::size_t j = 0; j < q.size(); ++j) {
                const double ratio = 3 * q[i] * q[j];  // ratio of C8 to C6
                if (!(q[i] > 0)) fields.fail("q", number_text(q[i]), "lengths over 0");
                PairDamping pair{s6, 0, 0, s8 * ratio, 0, 0};
                if (kind == "bj") {
                    const double a = fields.number("a1") * std::sqrt(ratio) + fields.number("a2");
                    pair.a6 = std::pow(a, 6);
                    pair.a8 = std::pow(a, 8);
                } else {
                    const double r = radii[i * q.size() + j];
                    pair.p6 = 6 * std::pow(fields.number("rs6") * r, 14);
                    pair.p8 = 6 * std::pow(fields.number("rs8") * r, 16);
                }
                damping.push_back(pair);
            }
    }
};

// Throws EngineError.
[[noreturn]] void refuse_energy_weights() {
    throw EngineError(ErrorKind::unsupported,
                      "energy_weights are given, which dispersion does not support: leave out "
                      "dispersion, or the weights");
}

template <typename T>
class CpuDispersion : public CpuOp<T> {
public:
    explicit CpuDispersion(const DispersionSpec& spec) : spec_(spec) {
        const auto types = size(spec.num_types);
        references_.assign(types, 1);
        for (std::size_t i = 0; i < spec.c6.size(); ++i) {
            const auto b = static_cast<int>(i % MAX_REFERENCES);
            int& most = references_[i / MAX_REFERENCES % types];
            if (spec.c6[i] != 0) most = std::max(most, b + 1);
        }
    }

    // With forces, the backward pass computes energies, too, because one pass gives both.
    void forward(Worker<T>& worker, Range nodes) const override {
        if (!worker.with_gradient) run(worker, nodes, false);
    }
    void backward(Worker<T>& worker, Range nodes) const override { run(worker, nodes, true); }

private:
    using Row = std::array<double, MAX_REFERENCES>;

    // sum_a weight_a C6_ab for two types, by b.
    Row strengths(const T* weights, std::int64_t type, std::int64_t other) const {
        Row found{};
        const double* c6 =
            &spec_.c6[size((type * MAX_REFERENCES * spec_.num_types + other) * MAX_REFERENCES)];
        for (std::size_t a = 0; a < MAX_REFERENCES; ++a)
            for (std::size_t b = 0; b < MAX_REFERENCES; ++b)
                found[b] += static_cast<double>(weights[a]) *
                            c6[a * size(spec_.num_types) * MAX_REFERENCES + b];
        return found;
    }

    void run(Worker<T>& worker, Range nodes, bool backward) const {
        if (worker.energy_weights != nullptr) refuse_energy_weights();
        gather_points(worker, MAX_REFERENCES, spec_.x.rows.width, worker.value(spec_.x),
                      of_points_);
        const std::int64_t types = spec_.num_types;
        each_atom(worker, nodes, spec_.cutoff, [&](std::int64_t n, const auto& visit) {
            const T* const own = worker.value(spec_.x, n);
            const std::int64_t type = worker.types[n];
            thread_local std::vector<Row> c6, sums;
            c6.resize(size(types));
            sums.assign(size(types), Row{});
            for (std::int64_t t = 0; t < types; ++t) c6[size(t)] = strengths(own, type, t);
            PairForce force;
            visit([&](int other, std::int64_t begin, const PairRun& run) {
                const double* weights[MAX_REFERENCES];
                for (std::size_t b = 0; b < MAX_REFERENCES; ++b)
                    weights[b] = of_points_[b].data() + begin;
                simd<double>().dispersion(run, spec_.damping[size(type * types + other)],
                                          references_[size(other)], weights, c6[size(other)].data(),
                                          sums[size(other)].data(), backward ? &force : nullptr);
            });
            double energy = 0;
            for (std::size_t t = 0; t < sums.size(); ++t)
                for (std::size_t b = 0; b < MAX_REFERENCES; ++b) energy -= c6[t][b] * sums[t][b];
            worker.energies[n] += 0.5 * energy;
            if (!backward) return;
            add_force(worker, n, force);
            if (!spec_.x.needs_gradient) return;
            T* const gradient = worker.started_gradient(spec_.x, n);
            for (std::int64_t t = 0; t < types; ++t)
                for (std::int64_t a = 0; a < MAX_REFERENCES; ++a) {
                    const double* row =
                        &spec_.c6[size(((type * MAX_REFERENCES + a) * types + t) * MAX_REFERENCES)];
                    double sum = 0;
                    for (std::size_t b = 0; b < MAX_REFERENCES; ++b)
                        sum += row[b] * sums[size(t)][b];
                    gradient[a] -= static_cast<T>(sum);
                }
        });
    }

    const DispersionSpec& spec_;
    std::vector<int> references_;                         // [T] references of a type
    mutable std::vector<std::vector<double>> of_points_;  // the points of one evaluation
};

constexpr std::size_t WEIGHT_BYTES = 64;  // bytes of a padded row of weights

template <typename T>
class CudaDispersion : public CudaOp<T> {
public:
    explicit CudaDispersion(const DispersionSpec& spec) : spec_(spec) {
        if (spec.x.accumulate)  // its gradient is copied
            spec.fields.fail("x", "a value whose gradient another layer finds first",
                             "a value that this layer alone reads, for device cuda");
        for (std::size_t i = 0; i < spec.c6.size(); ++i)
            if (spec.c6[i] != 0) references_ = std::max(references_, int(i % MAX_REFERENCES) + 1);
    }

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        const bool zero = std::any_of(spec_.damping.begin(), spec_.damping.end(),
                                      [](const auto& d) { return d.p6 != 0 || d.p8 != 0; });
        const std::string defines = "#define REFERENCES_USED " + std::to_string(references_) +
                                    "\n#define ZERO_DAMPING " + (zero ? "true" : "false") + "\n";
        energy_ = kernels.fixed("dispersion.cuh", "dispersion_energy", defines);
        gradient_ = kernels.fixed("dispersion.cuh", "dispersion_gradient", defines);
        c6_.upload(spec_.c6, stream);
        damping_.upload(spec_.damping, stream);
    }
    // The forward pass computes energies, forces and gradients, because energies are summed before
    // the backward pass.
    void forward(CudaWorker<T>& worker, Range) const override {
        DispersionArguments<T> arguments{};
        arguments.points = worker.points->set();
        arguments.rows = worker.value(spec_.x);
        arguments.weights =
            worker.points->gather(arguments.rows, references_, spec_.x.rows.width, *worker.stream);
        arguments.c6 = c6_.data();
        arguments.damping = damping_.data();
        arguments.types = worker.types;
        arguments.energies = worker.energies;
        arguments.gradient = static_cast<T*>(worker.points->kept_rows());
        arguments.forces = worker.forces;
        arguments.virials = worker.virials;
        arguments.cutoff = spec_.cutoff;
        arguments.count = worker.points->count();
        arguments.num_types = spec_.num_types;
        arguments.width = spec_.x.rows.width;
        if (worker.energy_weights != nullptr) refuse_energy_weights();
        (worker.with_gradient ? gradient_ : energy_)
            .launch(*worker.stream, worker.edges->num_local, POINT_THREADS, arguments);
    }
    void backward(CudaWorker<T>& worker, Range) const override {
        if (spec_.x.needs_gradient)
            copy_on_device(worker.gradient(spec_.x), worker.points->kept_rows(),
                           size(worker.edges->num_local) * WEIGHT_BYTES, *worker.stream);
    }

private:
    const DispersionSpec& spec_;
    int references_ = 1;  // most references of a type
    DeviceArray<double> c6_;
    DeviceArray<PairDamping> damping_;
    CudaFunction energy_, gradient_;
};

const RegisterOp<DispersionSpec, CpuDispersion, CudaDispersion> dispersion{"dispersion"};

}  // namespace

}  // namespace mdcg
