// Potentials and energies of charges and dipoles on devices.
#include <algorithm>
#include <memory>
#include <vector>

#include "core/integers.hpp"
#include "engine/communicator.hpp"
#include "engine/cuda/cuda_op.hpp"
#include "engine/edges/layout.hpp"
#include "engine/ops/system/multipole_waves.hpp"
#include "engine/ops/system/reciprocal.hpp"
#include "kernels/multipoles.hpp"

namespace mdcg {

namespace {

constexpr int PARTS = 4;  // a charge and a dipole

// Widths and factors of receivers. Factors are zero for parts that a value does not have.
struct DeviceReceivers {
    std::vector<double> widths, scales, owns;
    DeviceArray<double> on_device;  // [receivers] squares, [receivers][2], [receivers][2]

    int count() const { return static_cast<int>(widths.size()); }
    const double* device_widths() const { return on_device.data(); }
    const double* device_scales() const { return on_device.data() + widths.size(); }
    const double* device_owns() const { return on_device.data() + 3 * widths.size(); }

    void add(double sigma, const ByDegree& scale, const ByDegree& own) {
        widths.push_back(sigma * sigma);
        scales.insert(scales.end(), scale.begin(), scale.end());
        owns.insert(owns.end(), own.begin(), own.end());
    }
    void upload(const DeviceStream& stream) {
        std::vector<double> all = widths;
        all.insert(all.end(), scales.begin(), scales.end());
        all.insert(all.end(), owns.begin(), owns.end());
        on_device.upload(all, stream);
    }
};

// Arrays of one set of channels.
template <typename T>
struct Channels {
    T* moments;          // [channels][4][padded]
    double* potentials;  // [channels][10][padded]
    double* mine;        // [channels][waves][2]
    double* all;         // [channels][waves][2] of all processes
};

template <typename T>
MultipoleRows<T> rows_of(T* rows, const Operand& operand) {
    const std::vector<Block>& blocks = operand.rows.blocks;
    const bool vectors = blocks.size() > 1;
    return {rows, operand.rows.width, vectors ? blocks[1].offset : 0,
            vectors ? blocks[1].stride : 0};
}

// What both operations share.
template <typename T>
class CudaMultipoles : public CudaOp<T> {
public:
    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        constexpr const char *WAVES = "ewald.cuh", *TEXT = "multipoles.cuh";
        powers_ = kernels.fixed(WAVES, "wave_powers");
        sums_ = kernels.fixed(WAVES, "wave_sums");
        wave_fields_ = kernels.fixed(WAVES, "wave_fields");
        moments_ = kernels.fixed(TEXT, "multipole_moments");
        amplitudes_ = kernels.fixed(TEXT, "multipole_amplitudes");
        factors_ = kernels.fixed(TEXT, "multipole_factors");
        collect_ = kernels.fixed(TEXT, "multipole_collect");
        fields_ = kernels.fixed(TEXT, "multipole_fields");
        forces_ = kernels.fixed(TEXT, "multipole_forces");
        gradient_ = kernels.fixed(TEXT, "multipole_gradient");
        virial_ = kernels.fixed(TEXT, "multipole_virial");
        add_virial_ = kernels.fixed(TEXT, "multipole_add_virial");
        point_potentials_ = kernels.fixed(TEXT, "point_potentials");
        point_slopes_ = kernels.fixed(TEXT, "point_slopes");
        multiprocessors_ = kernels.multiprocessors();
        memory_ = std::make_unique<DeviceMemory>(kernels.device());
        shared_ = std::make_unique<PinnedMemory>(kernels.device());
        receivers_.upload(stream);
        sources_.upload(stream);
    }
    std::size_t bytes() const override {
        return memory_ ? memory_->bytes() + columns_.bytes() + weights_.bytes() + vectors_.bytes()
                       : 0;
    }

protected:
    static constexpr int THREADS = MULTIPOLE_THREADS;

    explicit CudaMultipoles(const MultipoleSpec& spec) : spec_(spec) {
        // sources are scaled as one receiver
        sources_.add(spec.gaussians.sigma, spec.source, {0, 0});
    }

    // Takes the waves of the cell, and memory for x and for so many channels of out.
    void reserve_for(const CudaWorker<T>& worker, int outputs) {
        periodic_ = spec_.is_periodic(worker.cell, worker.periodic);
        num_atoms_ = worker.edges->num_local;
        padded_ = ceil_div(num_atoms_, WAVE_ATOMS) * WAVE_ATOMS;
        const bool changed =
            periodic_ && waves_.update(worker.cell, spec_.gaussians, worker.waves_cell);
        const std::size_t of_waves = waves_.waves().columns().size() * sizeof(WaveColumn) +
                                     4 * sizeof(double) * waves_.count();
        const auto lacking = [](std::size_t wanted, std::size_t held) {
            return wanted - std::min(wanted, held);
        };
        const std::size_t needed = lay_out(outputs, nullptr);
        const std::size_t held = columns_.bytes() + weights_.bytes() + vectors_.bytes();
        const std::size_t more = lacking(needed, memory_->bytes()) + lacking(of_waves, held);
        if (more > 0) memory_->grow(needed, worker.edges->before_growth(more));
        lay_out(outputs, memory_->template as<char>());
        if (!changed) return;
        std::vector<double> vectors;
        for (const Vector3& k : waves_.vectors()) vectors.insert(vectors.end(), k.begin(), k.end());
        columns_.upload(waves_.waves().columns(), *worker.stream);
        weights_.upload(waves_.waves().weights(), *worker.stream);
        vectors_.upload(vectors, *worker.stream);
        lay_out(outputs, memory_->template as<char>());
    }

    void begin(CudaWorker<T>& worker) const {
        if (!periodic_) spec_.expect_one_process(worker.communicator, num_atoms_);
        ewald_.positions = worker.edges->positions;
        powers_stand_ = false;
    }

    // -- sums over waves -------------------------------------------------------------------------

    // Finds moments of `count` channels of a value and, in a cell, their amplitudes. The
    // amplitudes of all processes are in `all`, and those of this process in `mine`. With
    // `combined`, `all` has sums over receivers.
    void find_amplitudes(CudaWorker<T>& worker, const MultipoleRows<const T>& rows, int count,
                         const DeviceReceivers& scaled, const Channels<T>& of,
                         double* combined) const {
        const DeviceStream& stream = *worker.stream;
        MomentArguments<T> m{};
        m.num_atoms = num_atoms_;
        m.padded = padded_;
        m.channels = count;
        m.receivers = scaled.count();
        m.x = rows;
        m.factors = scaled.device_scales();
        m.moments = of.moments;
        m.longest = std::max(1.0, waves_.longest());
        const std::int64_t pairs = num_pairs(), sums = count * PARTS * 4 * pairs;
        Long* const total = ewald_.sums + sums;
        if (periodic_) {
            clear_on_device(ewald_.sums, 8 * size(sums + 1), stream);
            m.total = total;
        }
        moments_.cover(stream, count * padded_, THREADS, m);
        if (!periodic_) return;
        if (!powers_stand_) {
            EwaldArguments<T> powers = ewald_;
            powers.x = of.moments;
            powers.width = 1;
            powers.sums = extra_sums_;  // its own total of charges is not used
            powers.num_sums = 0;
            powers_.cover(stream, 3 * padded_, 2 * THREADS, powers);
            powers_stand_ = true;
        }
        const bool vectors = rows.vectors != 0;
        for (int part = 0; part < count * PARTS; ++part) {
            if (!vectors && part % PARTS > 0) continue;
            EwaldArguments<T> a = ewald_;
            a.charges = of.moments + part * padded_;
            a.sums = ewald_.sums + part * 4 * pairs;
            const std::int64_t tiles = ceil_div(a.num_columns, SUM_COLUMNS) * a.sum_tiles;
            const std::int64_t atom_tiles = padded_ / WAVE_ATOMS;
            a.num_splits = std::clamp<std::int64_t>(
                std::max(8 * multiprocessors_ / std::max<std::int64_t>(tiles, 1), atom_tiles / 32),
                1, std::max<std::int64_t>(atom_tiles, 1));
            sums_.launch(stream, tiles * a.num_splits, WAVE_THREADS, a);
        }
        AmplitudeArguments<T> a{};
        a.num_pairs = pairs;
        a.channels = count;
        a.parts = PARTS;
        a.receivers = combined != nullptr ? scaled.count() : 1;
        a.vectors = vectors_.data();
        a.weights = weights_.data();
        a.sums = ewald_.sums;
        a.total = total;
        a.amplitudes = of.mine;
        a.combined = combined;
        a.widths = scaled.device_widths();
        if (worker.communicator == nullptr) a.failures = worker.failures + 1;
        // also without waves: it checks the total
        amplitudes_.cover(stream, std::max<std::int64_t>(count / a.receivers * pairs, 1), THREADS,
                          a);
        const int shared = count / a.receivers;
        share(worker, combined != nullptr ? combined : of.mine,
              combined != nullptr ? combined : of.all, shared, total);
    }

    // Copies amplitudes [channels][waves][2], summed over all processes on the host.
    void share(const CudaWorker<T>& worker, const double* mine, double* all, int channels,
               const Long* total) const {
        const std::size_t items = size(2 * channels * 2 * num_pairs()), bytes = 8 * items;
        const DeviceStream& stream = *worker.stream;
        if (worker.communicator == nullptr) {
            if (all != mine) copy_on_device(all, mine, bytes, stream);
            return;
        }
        shared_->grow(bytes + 8);
        auto* const numbers = shared_->template as<double>();
        auto* const sum = reinterpret_cast<std::int64_t*>(numbers + items);
        if (bytes > 0) copy_to_host(numbers, mine, bytes, stream);
        copy_to_host(sum, total, 8, stream);
        stream.synchronize();
        std::vector<Amplitudes> found(size(channels), Amplitudes(size(2 * num_pairs())));
        const auto each = [&](const auto& body) {
            double* next = numbers;
            for (Amplitudes& channel : found)
                for (std::complex<double>& value : channel) {
                    body(value, next);
                    next += 2;
                }
        };
        each([](std::complex<double>& value, const double* from) { value = {from[0], from[1]}; });
        const auto limit = static_cast<std::int64_t>(MAX_CHARGE);
        const std::int64_t units = ceil_div(*sum, static_cast<std::int64_t>(TOTAL_UNITS));
        waves_.share(found, std::min(units, limit), worker.communicator);
        each([](const std::complex<double>& value, double* to) {
            to[0] = value.real(), to[1] = value.imag();
        });
        if (bytes > 0) copy_to_device(all, numbers, bytes, stream);
    }

    // Finds potentials of a channel from amplitudes of all processes.
    void find_potentials(const CudaWorker<T>& worker, const double* amplitudes, double variance,
                         bool with_second, double* potentials) const {
        const DeviceStream& stream = *worker.stream;
        MultipoleFactors<T> f{};
        f.num_pairs = num_pairs();
        f.vectors = vectors_.data();
        f.weights = weights_.data();
        f.amplitudes = amplitudes;
        f.variance = variance;
        f.factors = ewald_.factors;
        CollectArguments<T> c{};
        c.num_atoms = num_atoms_;
        c.padded = padded_;
        c.num_parts = ewald_.num_parts;
        std::copy_n(ewald_.inverse, 9, c.inverse);
        c.fields = ewald_.fields;
        c.potentials = potentials;
        for (int direction = -1; direction < (with_second ? 3 : 0); ++direction) {
            f.direction = c.direction = direction;
            factors_.cover(stream, f.num_pairs, THREADS, f);
            wave_fields_.launch(stream, padded_ / WAVE_ATOMS * ewald_.num_parts, WAVE_THREADS,
                                ewald_);
            collect_.cover(stream, num_atoms_, THREADS, c);
        }
    }

    void add_virial(const CudaWorker<T>& worker, const Channels<T>& of, const double* all,
                    int count, const DeviceReceivers& widths, double factor) const {
        MultipoleVirial<T> v{};
        v.num_waves = 2 * num_pairs();
        v.num_blocks = ceil_div(v.num_waves, VIRIAL_WAVES);
        if (v.num_blocks == 0 || num_atoms_ == 0) return;
        v.channels = count;
        v.receivers = widths.count();
        v.vectors = vectors_.data();
        v.weights = weights_.data();
        v.mine = of.mine;
        v.all = all;
        v.widths = widths.device_widths();
        v.variance = spec_.gaussians.sigma * spec_.gaussians.sigma;
        v.factor = factor;
        v.sums = virial_sums_;
        v.virials = worker.virials;
        virial_.launch(*worker.stream, count * v.num_blocks, THREADS, v);
        add_virial_.launch(*worker.stream, 1, 32, v);
    }

    MultipoleForces<T> forces_of(const CudaWorker<T>& worker, const Channels<T>& of, int count,
                                 bool dipoles) const {
        return {num_atoms_,    padded_, count,         dipoles,       of.moments,
                of.potentials, nullptr, worker.forces, worker.virials};
    }

    PointArguments<T> points_of(const CudaWorker<T>& worker, int count,
                                const DeviceReceivers& receivers, bool displaced) const {
        PointArguments<T> p{};
        p.num_atoms = num_atoms_;
        p.padded = padded_;
        p.positions = worker.edges->positions;
        p.channels = count;
        p.receivers = receivers.count();
        p.pairs = {spec_.gaussians.factor / (2 * TWO_PI), spec_.offset, displaced ? 4 : 1};
        p.variance = spec_.gaussians.sigma * spec_.gaussians.sigma;
        p.widths = receivers.device_widths();
        p.moments = x_.moments;
        return p;
    }

    std::int64_t num_pairs() const { return periodic_ ? waves_.waves().num_pairs() : 0; }

    const MultipoleSpec& spec_;
    DeviceReceivers receivers_, sources_;
    CudaFunction powers_, sums_, wave_fields_, moments_, amplitudes_, factors_, collect_, fields_,
        forces_, gradient_, virial_, add_virial_, point_potentials_, point_slopes_;
    // Steps are not captured here, so memory may grow before every step.
    bool periodic_ = false;
    std::int64_t num_atoms_ = 0, padded_ = 0;
    Channels<T> x_{}, out_{};
    mutable bool powers_stand_ = false;  // powers of waves at the positions of this step

private:
    // Places all arrays in `memory`, and returns the bytes that they take.
    std::size_t lay_out(int outputs, char* memory) {
        EwaldArguments<T>& a = ewald_;
        a = {};
        a.num_atoms = num_atoms_;
        a.padded = narrow(padded_);
        const std::int64_t tiles = padded_ / WAVE_ATOMS, waves = 2 * num_pairs();
        if (periodic_) {
            const Waves& of_cell = waves_.waves();
            for (std::size_t i = 0; i < 9; ++i) a.inverse[i] = of_cell.inverse()[i / 3][i % 3];
            for (std::size_t d = 0; d < 3; ++d) a.bounds[d] = of_cell.bound(d);
            a.num_columns = static_cast<std::int64_t>(of_cell.columns().size());
            a.num_sums = 4 * num_pairs();
            a.sum_tiles = a.bounds[2] / SUM_WAVES + 1;
        }
        a.columns = columns_.data();
        a.weights = weights_.data();
        // a constant, because the order of these sums must not depend on the device
        constexpr std::int64_t FIELD_BLOCKS = 2048;
        a.num_parts = std::clamp<std::int64_t>(
            FIELD_BLOCKS / std::max<std::int64_t>(tiles, 1), 1,
            std::max<std::int64_t>(ceil_div(a.num_columns, FIELD_COLUMNS), 1));
        const std::int64_t most = std::max(spec_.channels, outputs);
        Layout parts(memory, DEVICE_ALIGNMENT);
        for (const auto& [of, count] :
             {std::pair{&x_, spec_.channels}, std::pair{&out_, outputs}}) {
            parts.take(of->moments, count * PARTS * padded_);
            parts.take(of->potentials, count * 10 * padded_);
            parts.take(of->mine, count * waves * 2);
            parts.take(of->all, count * waves * 2);
        }
        parts.take(virial_sums_, 6 * most * (ceil_div(waves, VIRIAL_WAVES) + 1));
        if (!periodic_) return parts.bytes();
        parts.take(a.charges, padded_);
        for (std::size_t d = 0; d < 3; ++d)
            parts.take(a.powers[d], 2 * (a.bounds[d] + 1) * padded_);
        parts.take(a.sums, most * PARTS * 2 * waves + 1);
        parts.take(extra_sums_, 1);
        parts.take(a.factors, a.num_sums);
        parts.take(a.fields, 4 * a.num_parts * padded_);
        return parts.bytes();
    }

    int multiprocessors_ = 1;
    MultipoleWaves waves_;  // kept while the cell is the same
    mutable EwaldArguments<T> ewald_{};
    Long* extra_sums_ = nullptr;     // [1]
    double* virial_sums_ = nullptr;  // [blocks of multipole_virial][6]
    DeviceArray<WaveColumn> columns_;
    DeviceArray<double> weights_, vectors_;
    std::unique_ptr<DeviceMemory> memory_;
    std::unique_ptr<PinnedMemory> shared_;
};

template <typename T>
class CudaReciprocalField : public CudaMultipoles<T> {
public:
    explicit CudaReciprocalField(const ReciprocalFieldSpec& spec)
        : CudaMultipoles<T>(spec), field_(spec) {
        for (const Receiver& to : spec.receivers) receivers_.add(to.sigma, to.scale, to.own);
        for (std::size_t i = 0; i < receivers_.owns.size(); ++i) {
            kept_owns_.push_back(spec.own_removed ? 0.0 : receivers_.owns[i]);
            receivers_.owns[i] = spec.own_removed ? -receivers_.owns[i] : 0.0;
        }
    }
    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        CudaMultipoles<T>::prepare(kernels, stream);
        open_owns_.upload(kept_owns_, stream);
    }

    void reserve(const CudaWorker<T>& worker) override {
        this->reserve_for(worker, field_.channels * receivers_.count());
    }
    void forward(CudaWorker<T>& worker, Range) const override {
        const int outputs = field_.channels * receivers_.count();
        this->begin(worker);
        const auto x = rows_of<const T>(worker.value(field_.x), field_.x);
        this->find_amplitudes(worker, x, field_.channels, this->sources_, x_, nullptr);
        for (int channel = 0; channel < outputs && periodic_; ++channel)
            this->find_potentials(worker, x_.all + channel / receivers_.count() * waves(),
                                  receivers_.widths[size(channel % receivers_.count())],
                                  worker.with_gradient && (field_.dipoles || field_.slopes),
                                  out_.potentials + 10 * channel * padded_);
        if (!periodic_) {
            PointArguments<T> p = this->points_of(worker, outputs, receivers_, displaced());
            p.potentials = out_.potentials;
            this->point_potentials_.cover(*worker.stream, 32 * outputs * num_atoms_,
                                          MULTIPOLE_THREADS, p);
        }
        FieldArguments<T> a{};
        a.num_atoms = num_atoms_;
        a.padded = padded_;
        a.channels = outputs;
        a.receivers = receivers_.count();
        a.x = x;
        a.out = rows_of(worker.value(field_.out), field_.out);
        a.potentials = out_.potentials;
        a.factors = receivers_.device_scales();
        a.owns = owns();
        this->fields_.cover(*worker.stream, num_atoms_, MULTIPOLE_THREADS, a);
    }

    void backward(CudaWorker<T>& worker, Range) const override {
        const DeviceStream& stream = *worker.stream;
        const int outputs = field_.channels * receivers_.count();
        const auto g = rows_of<const T>(worker.gradient(field_.out), field_.out);
        // sums over receivers take the place of amplitudes of all processes
        this->find_amplitudes(worker, g, outputs, receivers_, out_, out_.all);
        if (periodic_) {
            this->forces_.cover(stream, num_atoms_, MULTIPOLE_THREADS,
                                this->forces_of(worker, out_, outputs, field_.slopes));
            this->add_virial(worker, out_, x_.all, outputs, receivers_, 1.0);
            for (int c = 0; c < field_.channels; ++c)
                this->find_potentials(worker, out_.all + c * waves(), 0.0, field_.dipoles,
                                      x_.potentials + 10 * c * padded_);
            this->forces_.cover(stream, num_atoms_, MULTIPOLE_THREADS,
                                this->forces_of(worker, x_, field_.channels, field_.dipoles));
        } else {
            PointArguments<T> p = this->points_of(worker, outputs, receivers_, displaced());
            p.slopes = out_.moments;
            p.potentials = x_.potentials;
            p.forces = worker.forces;
            p.virials = worker.virials;
            this->point_slopes_.cover(stream, 32 * num_atoms_, MULTIPOLE_THREADS, p);
        }
        if (!field_.x.needs_gradient) return;
        GradientArguments<T> a{};
        a.num_atoms = num_atoms_;
        a.padded = padded_;
        a.channels = field_.channels;
        a.receivers = receivers_.count();
        a.add = field_.x.accumulate;
        a.gradient = rows_of(worker.gradient(field_.x), field_.x);
        a.other = g;
        a.potentials = x_.potentials;
        a.factors = this->sources_.device_scales();
        a.owns = owns();
        this->gradient_.cover(stream, num_atoms_, MULTIPOLE_THREADS, a);
    }

private:
    using CudaMultipoles<T>::receivers_;
    using CudaMultipoles<T>::x_;
    using CudaMultipoles<T>::out_;
    using CudaMultipoles<T>::periodic_;
    using CudaMultipoles<T>::num_atoms_;
    using CudaMultipoles<T>::padded_;

    bool displaced() const { return field_.dipoles || field_.slopes; }
    std::int64_t waves() const { return 4 * this->num_pairs(); }  // items of a channel
    // The sum over waves contains own parts, that over pairs does not.
    const double* owns() const { return periodic_ ? receivers_.device_owns() : open_owns_.data(); }

    const ReciprocalFieldSpec& field_;
    std::vector<double> kept_owns_;
    DeviceArray<double> open_owns_;  // [receivers][2]
};

template <typename T>
class CudaReciprocalEnergy : public CudaMultipoles<T> {
public:
    explicit CudaReciprocalEnergy(const ReciprocalEnergySpec& spec)
        : CudaMultipoles<T>(spec), energy_(spec) {
        receivers_.add(spec.gaussians.sigma, {0.5 * spec.source[0], 0.5 * spec.source[1]},
                       {spec.own[0], spec.own[1]});
    }
    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        CudaMultipoles<T>::prepare(kernels, stream);
        const double periodic = energy_.own_removed ? -1 : 0, open = energy_.own_removed ? 0 : 1;
        owns_.upload({periodic * energy_.own[0], periodic * energy_.own[1], open * energy_.own[0],
                      open * energy_.own[1]},
                     stream);
    }

    void reserve(const CudaWorker<T>& worker) override {
        this->reserve_for(worker, energy_.channels);
    }
    void forward(CudaWorker<T>& worker, Range) const override {
        if (!worker.with_gradient) run(worker);
    }
    void backward(CudaWorker<T>& worker, Range) const override { run(worker); }

private:
    using CudaMultipoles<T>::receivers_;
    using CudaMultipoles<T>::x_;
    using CudaMultipoles<T>::out_;
    using CudaMultipoles<T>::periodic_;
    using CudaMultipoles<T>::num_atoms_;
    using CudaMultipoles<T>::padded_;

    void run(CudaWorker<T>& worker) const {
        const DeviceStream& stream = *worker.stream;
        const int count = energy_.channels;
        this->begin(worker);
        const auto x = rows_of<const T>(worker.value(energy_.x), energy_.x);
        this->find_amplitudes(worker, x, count, this->sources_, x_, nullptr);
        const bool forces = worker.with_gradient;
        for (int c = 0; c < count && periodic_; ++c)
            this->find_potentials(worker, x_.all + c * 4 * this->num_pairs(), receivers_.widths[0],
                                  forces && energy_.dipoles, x_.potentials + 10 * c * padded_);
        if (!periodic_) {
            PointArguments<T> p = this->points_of(worker, count, receivers_, energy_.dipoles);
            p.potentials = x_.potentials;
            this->point_potentials_.cover(stream, 32 * count * num_atoms_, MULTIPOLE_THREADS, p);
        }
        MultipoleForces<T> f = this->forces_of(worker, x_, count, energy_.dipoles);
        f.energies = worker.energies;
        if (!forces || !periodic_) f.forces = f.virials = nullptr;
        this->forces_.cover(stream, num_atoms_, MULTIPOLE_THREADS, f);
        if (forces && periodic_) this->add_virial(worker, x_, x_.all, count, receivers_, 0.5);
        GradientArguments<T> a{};
        a.num_atoms = num_atoms_;
        a.padded = padded_;
        a.channels = count;
        a.receivers = 1;
        a.add = energy_.x.accumulate;
        if (forces) a.gradient = rows_of(worker.wanted_gradient(energy_.x), energy_.x);
        a.other = x;
        a.potentials = x_.potentials;
        a.factors = this->sources_.device_scales();
        a.owns = owns_.data() + (periodic_ ? 0 : 2);
        a.energies = worker.energies;
        this->gradient_.cover(stream, num_atoms_, MULTIPOLE_THREADS, a);
        if (!forces || periodic_) return;
        // half of the moments in the potentials of all: each pair counts twice
        this->find_amplitudes(worker, x, count, receivers_, out_, nullptr);
        PointArguments<T> p = this->points_of(worker, count, receivers_, energy_.dipoles);
        p.slopes = out_.moments;
        p.potentials = out_.potentials;
        p.forces = worker.forces;
        p.virials = worker.virials;
        this->point_slopes_.cover(stream, 32 * num_atoms_, MULTIPOLE_THREADS, p);
    }

    const ReciprocalEnergySpec& energy_;
    DeviceArray<double> owns_;  // [2][2] in a cell, in open systems
};

const RegisterOp<ReciprocalFieldSpec, CudaReciprocalField> field_on_devices{"reciprocal_field"};
const RegisterOp<ReciprocalEnergySpec, CudaReciprocalEnergy> energy_on_devices{"reciprocal_energy"};

}  // namespace

}  // namespace mdcg
