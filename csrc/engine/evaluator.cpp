#include "engine/evaluator.hpp"

#include <omp.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/cpu.hpp"
#include "core/integers.hpp"
#include "core/interrupt.hpp"
#include "core/kernel_cache.hpp"
#include "core/text.hpp"
#include "core/threads.hpp"
#include "engine/backend/cpu/parallel.hpp"
#include "engine/cuda/devices.hpp"
#include "engine/cuda/model.hpp"

namespace mdcg {

namespace {

// All threads share the evaluation of a group of systems that has at least this many nodes.
constexpr std::int64_t NODES_FOR_THREADS = 512;

constexpr double LEAST_MEMORY = 1e5;    // bytes
constexpr double ADVISED_SHARE = 0.92;  // of a device's memory; the driver needs some itself

// Throws EngineError unless `text` is empty or names the package's precision: "fp32" or "float32",
// "fp64" or "float64".
void check_precision(const std::string& text, const Package& package) {
    if (text == "tf32" || text == "bf16")
        bad_argument("precision is '" + text +
                     "', a mode that was removed: leave it out, and float32 packages multiply in "
                     "float32");
    const bool single = text == "fp32" || text == "float32";
    if (!text.empty() && !single && text != "fp64" && text != "float64")
        bad_argument("precision is '" + text +
                     "', expected fp32 (or float32) or fp64 (or float64), or nothing for that of "
                     "the package");
    const bool wide = read_model_info(package).double_precision;
    if (text.empty() || single != wide) return;
    throw EngineError(ErrorKind::unsupported,
                      "precision is '" + text + "', and " + package.path() + " was converted to " +
                          (wide ? "float64" : "float32") +
                          ", which is fixed: leave it out, or convert the checkpoint again "
                          "(mdcg-patch --precision " +
                          (single ? "fp32)" : "fp64)"));
}

// The bytes that a text such as "120 GB" or "90 %" of `total` names.
double parse_memory(const std::string& text, double total, const std::string& device) {
    static const std::map<std::string, double> units{
        {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}};
    std::size_t end = 0;
    double number = 0;
    const auto [after, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc()) end = static_cast<std::size_t>(after - text.data());
    while (end > 0 && end < text.size() && text[end] == ' ') ++end;
    const std::string unit = text.substr(end);
    const auto known = units.find(unit);
    const double bytes = unit == "%"            ? number / 100 * total
                         : known != units.end() ? number * known->second
                                                : std::numeric_limits<double>::quiet_NaN();
    if (!(bytes >= LEAST_MEMORY))
        bad_argument("memory is '" + text +
                     "', expected a share of the device such as '90 %', or a size of 0.1 MB or "
                     "more such as '120 GB' (or MB, TB, MiB, GiB)");
    if (bytes > total)
        bad_argument("memory is '" + text + "', and " + device + " has " +
                     MemoryError::size_text(total) + ", expected no more");
    return bytes;
}

}  // namespace

Evaluator::Evaluator(std::shared_ptr<const Package> file, const EvaluatorOptions& options)
    : file_(std::move(file)), skin_(options.skin) {
    if (!std::isfinite(skin_) || skin_ < 0)
        bad_argument("skin is " + number_text(skin_) + ", expected a length of 0 Å or more");
    choice_ = KernelChoice::parse(options.kernels);
    const int device = parse_device(options.device);
    if (device >= 0 && choice_.mode == KernelChoice::generic)
        throw EngineError(ErrorKind::unsupported,
                          "kernels is 'generic', which are for CPUs alone: use device cpu, or "
                          "kernels auto");
    auto network = chosen_network(file_, options.dispersion);
    check_precision(options.precision, *network);
    ModelInfo info = read_model_info(*network);
    if (device < 0)
        model_ = Model::open(std::move(network), std::move(info), choice_);
    else
        model_ = open_cuda_model(std::move(network), std::move(info), device, choice_);
    set_threads(options.threads);
    if (options.fixed_waves) {
        if (!model_->reads_system())
            throw EngineError(ErrorKind::unsupported, "fixed_waves is set, and the network of " +
                                                          package().path() +
                                                          " has no long-range sum: leave it out");
        fixed_waves_ = true;
        model_->fix_waves();
    }
    if (options.memory.empty()) return;
    if (model_->reads_system())
        throw EngineError(ErrorKind::unsupported,
                          "memory is '" + options.memory + "', and the network of " +
                              package().path() +
                              " has a long-range sum, which is not divided into domains: leave "
                              "memory out");
    if (options.memory_models < 1)
        bad_argument("memory_models is " + std::to_string(options.memory_models) +
                     ", expected 1 or more");
    memory_models_ = options.memory_models;
    memory_ = parse_memory(options.memory, static_cast<double>(model_->total_memory()),
                           model_->device_label()) /
              memory_models_;
    model_->set_memory(static_cast<std::size_t>(memory_));
    make_domains();
}

void Evaluator::make_domains() {
    domains_.reset();
    if (memory_ == 0 || model_->reach_in_cutoffs() == 0) return;
    domains_ = std::make_unique<Domains>(
        info().r_max, model_->reach_in_cutoffs(),
        [this](double local, double nodes, double edges) {
            return model_->bytes_needed(local, nodes, edges);
        },
        memory_);
}

void Evaluator::set_threads(int threads) {
    if (threads < 0 || threads > 4096)
        bad_argument("threads is " + std::to_string(threads) +
                     ", expected 1 to 4096, or 0 for OpenMP's own "
                     "choice");
    threads_ = threads;
    model_->set_threads(threads);
}

void Evaluator::prepare() {
    if (prepared_) return;
    model_->set_threads(1);  // an empty system has no work for more threads
    try {
        model_->evaluate(System{}, nullptr, Results{});
    } catch (...) {
        model_->set_threads(threads_);
        throw;
    }
    model_->set_threads(threads_);
    prepared_ = true;
}

void Evaluator::release() {
    neighbors_.reset();
    make_domains();
    others_.clear();
    model_->release();
#ifdef __GLIBC__
    malloc_trim(0);  // otherwise malloc keeps freed memory, which Arena then cannot map
#endif
}

template <typename Function>
auto Evaluator::guarded(const Function& function) {
    try {
        return function();
    } catch (const GeometryError& error) {
        bad_argument(error.sentence);
    } catch (const std::bad_alloc&) {
        release();
        throw;
    }
}

void Evaluator::check(const Results& results) const {
    const bool energy = results.energy != nullptr || results.energies != nullptr ||
                        results.forces != nullptr || results.virial != nullptr ||
                        results.virials != nullptr;
    if (energy && !model_->has_energy())
        throw EngineError(ErrorKind::unsupported,
                          "the network of " + package().path() +
                              " gives dipoles, and no energies: ask for descriptors alone, whose "
                              "last three are the dipole of an atom");
}

void Evaluator::run(const System& system, Communicator* communicator, const Results& results) {
    in_domains_ = false;
    guarded([&] { model_->evaluate(system, communicator, results); });
    prepared_ = true;
}

void Evaluator::evaluate(const System& system, Communicator* communicator, const Results& results) {
    check(results);
    if (system.make_edges && !model_->makes_edges())
        throw EngineError(
            ErrorKind::unsupported,
            "make_edges is set with ghosts, copies or a communicator, with which devices "
            "alone make edges: give them, or use device cuda");
    try {
        run(system, communicator, results);
    } catch (const MemoryError& error) {
        if (domains_ == nullptr) throw;
        throw EngineError(
            ErrorKind::memory,
            MemoryError::sizes_text(error.needed, error.allowed, model_->device_label()) +
                ", and systems whose edges or ghosts are given, as on several ranks and for heat "
                "fluxes, "
                "are not divided into domains: evaluate a smaller system, or use more devices, "
                "each "
                "with a rank of its own");
    }
}

void Evaluator::evaluate(const CellSystem& system, const Results& results) {
    check(results);
    in_domains_ = false;
    guarded([&] { evaluate_within_memory(system, results); });
}

void Evaluator::evaluate_within_memory(const CellSystem& system, const Results& results) {
    for (;;) {
        const bool divided = domains_ != nullptr && system.num_nodes > 0 && divide(system);
        try {
            return divided ? evaluate_domains(system, results) : evaluate_whole(system, results);
        } catch (const MemoryError& error) {
            if (domains_ == nullptr || system.num_nodes == 0)
                throw with_advice(error, system.num_nodes);
            domains_->correct(error.needed);
        }
    }
}

bool Evaluator::divide(const CellSystem& system) {
    try {
        return domains_->divide(system, usable_threads(threads_));
    } catch (const MemoryError& error) {
        const double enough = 1.25 * memory_models_ * error.needed;
        const bool possible = enough <= static_cast<double>(model_->total_memory());
        throw EngineError(
            ErrorKind::memory,
            "memory is " + MemoryError::size_text(memory_models_ * memory_) +
                ", too little for the smallest domains of " + std::to_string(system.num_nodes) +
                " atoms: " +
                (possible ? "set it to " + MemoryError::size_text(enough) + " or more"
                          : "evaluate a smaller system, or use a device with more memory"));
    }
}

EngineError Evaluator::with_advice(const MemoryError& error, std::int64_t num_atoms) const {
    if (memory_ > 0 || model_->reach_in_cutoffs() == 0) return error;
    const double share = ADVISED_SHARE * static_cast<double>(model_->total_memory());
    const double free = 0.95 * error.allowed;
    return {ErrorKind::memory,
            std::to_string(num_atoms) + " atoms on " + model_->device_label() + ": " +
                MemoryError::sizes_text(error.needed, error.allowed) + ": set memory to '" +
                (free < share ? MemoryError::size_text(free) : "92 %") +
                "', and domains of the system are evaluated one after the other"};
}

void Evaluator::evaluate_domains(const CellSystem& system, const Results& results) {
    in_domains_ = true;
    const auto start = std::chrono::steady_clock::now();
    domains_->evaluate(
        system, results, model_->descriptor_width(), usable_threads(threads_),
        [this](const CellSystem& nodes, const Results& wanted) { evaluate_whole(nodes, wanted); });
    domains_ms_ =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void Evaluator::evaluate_whole(const CellSystem& found, const Results& results) {
    if (model_->evaluate_cell(found, results)) return;
    const auto start = std::chrono::steady_clock::now();
    if (neighbors_ == nullptr || neighbors_skin_ != found.skin) {
        neighbors_ = std::make_unique<NeighborList>(info().r_max, found.skin);
        neighbors_skin_ = found.skin;
    }
    if (neighbors_outer_ != found.num_outer) neighbors_->reset();
    neighbors_->update(found.num_nodes, found.positions, found.cell, found.periodic, threads_);
    neighbors_outer_ = found.num_outer;
    neighbors_ms_ =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    System system;
    system.num_local = found.num_local();
    system.num_nodes = found.num_nodes;
    system.empty_ghosts = found.num_outer > 0;
    system.positions = found.positions;
    system.types = found.types;
    system.list = neighbors_->numbers();
    const std::vector<std::int32_t>& receivers = neighbors_->receiver();  // ascending
    system.num_edges =
        std::lower_bound(receivers.begin(), receivers.end(), found.num_local()) - receivers.begin();
    system.sender = neighbors_->sender().data();
    system.receiver = neighbors_->receiver().data();
    system.shifts = neighbors_->shifts().data();
    system.reversed = true;
    system.energy_weights = found.energy_weights;
    system.cell = found.cell;
    system.periodic = found.periodic;
    system.inputs = found.inputs;
    model_->evaluate(system, nullptr, results);
    prepared_ = true;
}

void Evaluator::evaluate(const Batch& batch, const Results& results) {
    check(results);
    in_domains_ = false;
    check_batch(batch, info().num_types());
    if (fixed_waves_)
        throw EngineError(ErrorKind::unsupported,
                          "fixed_waves is set, and a batch has cells of its own: evaluate the "
                          "systems one by one, or leave fixed_waves out");
    if (batch.on_device && results.descriptors != nullptr)
        throw EngineError(ErrorKind::unsupported,
                          "descriptors of a batch in the memory of a device are not implemented: "
                          "give positions of the host");
    const std::vector<std::vector<std::int64_t>> groups = groups_of(batch);
    if (groups.size() == 1) return evaluate_alike(batch, results);
    const int width = model_->descriptor_width();
    for (const std::vector<std::int64_t>& group : groups) {
        PickedSystems picked(batch, group);
        evaluate_alike(picked.batch(), picked.wanted(results, width));
        picked.store(results);
    }
}

std::vector<std::vector<std::int64_t>> Evaluator::groups_of(const Batch& batch) const {
    std::map<std::vector<double>, std::size_t> known;
    std::vector<std::vector<std::int64_t>> found;
    for (std::int64_t s = 0; s < batch.num_systems && batch.inputs != nullptr; ++s) {
        std::vector<double> values;
        try {
            values = model_->complete_inputs(batch.system(s).inputs);
        } catch (const EngineError& error) {
            throw EngineError(
                error.kind(),
                error.sentence.moved("system " + std::to_string(s) + " of the batch: ", 0));
        }
        // in the memory of a device, systems are not moved together
        if (batch.on_device && s > 0 && known.count(values) == 0) known.clear();
        const auto [group, made] = known.emplace(std::move(values), found.size());
        if (made) found.emplace_back();
        found[group->second].push_back(s);
    }
    if (found.empty()) found.emplace_back();
    return found;
}

void Evaluator::evaluate_alike(const Batch& batch, const Results& results) {
    if (domains_ != nullptr && !batch.on_device)
        for (std::int64_t s = 0; s < batch.num_systems; ++s)
            if (domains_->may_divide(batch.system(s).num_nodes))
                return evaluate_each(batch, results);
    try {
        if (guarded([&] { return model_->evaluate_batch(batch, results); })) return;
    } catch (const MemoryError&) {
        if (domains_ == nullptr || batch.on_device) throw;
        return evaluate_each(batch, results);
    }
    if (batch.on_device)
        throw EngineError(ErrorKind::unsupported,
                          "positions of the batch are in the memory of a device, where models on "
                          "the cpu and dispersion do not read them: give those of the host");
    if (model_->makes_edges()) return evaluate_each(batch, results);
    guarded([&] { share_groups(batch, results); });
    prepared_ = true;
}

// Evaluates the systems of a batch one after the other.
void Evaluator::evaluate_each(const Batch& batch, const Results& results) {
    const int width = model_->descriptor_width();
    for (std::int64_t s = 0; s < batch.num_systems; ++s)
        guarded([&] {
            in_system(batch, s, [&] {
                evaluate_within_memory(batch.system(s), results_of(results, batch, s, width));
            });
        });
}

// Each thread evaluates small groups of systems with a model of its own, because threads that share
// a group wait for each other in every layer. Groups do not depend on the number of threads.
void Evaluator::share_groups(const Batch& batch, const Results& results) {
    const bool joins = !model_->reads_system();  // a long-range sum has one cell
    const std::vector<std::int64_t> cuts = JoinedSystems::cut(batch, joins);
    const int width = model_->descriptor_width();
    const auto evaluate = [&](std::size_t group, Model& model, JoinedSystems& joined, int threads) {
        joined.join(batch, cuts[group], cuts[group + 1], threads);
        if (!joins) {
            const std::int64_t s = cuts[group];
            return in_system(batch, s, [&] {
                System system = joined.system();
                system.cell = batch.cell(s);
                system.periodic = batch.periodic + 3 * s;
                model.evaluate(system, nullptr, results_of(results, batch, s, width));
            });
        }
        try {
            model.evaluate(joined.system(), nullptr, joined.wanted(results, width));
        } catch (const EngineError& error) {
            if (!error.sentence.names_nodes()) throw;
            throw EngineError(error.kind(), joined.of_batch(error.sentence));
        }
        joined.store(results);
    };
    std::vector<JoinedSystems> joined(1, JoinedSystems(info().r_max));
    std::vector<std::size_t> small;
    for (std::size_t group = 0; group + 1 < cuts.size(); ++group) {
        const std::int64_t nodes =
            batch.first_node[cuts[group + 1]] - batch.first_node[cuts[group]];
        if (nodes < NODES_FOR_THREADS)
            small.push_back(group);
        else
            evaluate(group, *model_, joined[0], threads_);
    }
    const int threads =
        std::min(usable_threads(threads_), narrow(static_cast<std::int64_t>(small.size())));
    while (static_cast<int>(others_.size()) + 1 < threads) {
        auto other = Model::open(model_->shared_package(), info(), choice_);
        other->set_threads(1);
        other->evaluate(System{}, nullptr, Results{});  // loads the kernels
        others_.push_back(std::move(other));
    }
    joined.resize(size(std::max(threads, 1)), JoinedSystems(info().r_max));
    const int threads_per_group = threads > 1 ? 1 : threads_;
    model_->set_threads(threads_per_group);
    FirstError error;
    std::atomic<bool> stop{false};
    share_in_turns(threads, static_cast<std::int64_t>(small.size()), 1,
                   [&](std::int64_t i, int thread) {
                       if (stop) return;
                       std::optional<HelperScope> helper;
                       if (thread > 0) helper.emplace(stop);
                       const auto mine = size(thread);
                       try {
                           evaluate(small[size(i)], thread == 0 ? *model_ : *others_[mine - 1],
                                    joined[mine], threads_per_group);
                       } catch (...) {
                           error.keep();
                           stop = true;
                       }
                   });
    model_->set_threads(threads_);
    error.rethrow();
}

std::string Evaluator::report() const {
    nlohmann::json out = model_->report();
    if (has_own_edges()) {
        out["neighbors_ms"] = neighbors_ms_;
        out["neighbor_lists_built"] = neighbors_->num_builds();
    }
    out["kernel_summary"] = model_->kernel_summary();
    if (memory_ > 0) out["memory_bytes"] = memory_;
    if (in_domains_) {
        out["domains"] = domains_->count();
        out["domain_nodes"] = domains_->max_nodes();
        out["domain_divisions"] = domains_->num_divisions();
        out["domains_ms"] = domains_ms_;
    }
    out["cpu"] = instruction_set_level();
    const std::string warning = KernelCache::warning();
    if (!warning.empty()) out["cache"] = warning;
    return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string Evaluator::summary() const {
    const ModelInfo& about = info();
    const int threads = forked_after_threads() ? 1
                        : threads_ > 0         ? threads_
                                               : omp_get_max_threads();
    const std::string inputs = inputs_text(about);
    std::string text = about.architecture + " " + about.model_class + ", " +
                       (inputs.empty() ? "" : inputs + ", ") +
                       (about.double_precision ? "float64" : "float32") + ", " +
                       model_->device_label();
    if (!model_->on_device())
        text += ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
    if (in_domains_)
        text += ", " + std::to_string(domains_->count()) + " domains of at most " +
                std::to_string(domains_->max_nodes()) + " atoms";
    text += ", " + model_->kernel_summary();
    const std::string warning = KernelCache::warning();
    return warning.empty() ? text : text + "; " + warning;
}

}  // namespace mdcg
