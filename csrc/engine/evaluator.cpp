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
double parse_memory(const std::string& text, std::size_t total) {
    static const std::map<std::string, double> units{{"%", static_cast<double>(total) / 100},
                                                     {"MB", 1e6},
                                                     {"GB", 1e9},
                                                     {"TB", 1e12},
                                                     {"MiB", 1048576.0},
                                                     {"GiB", 1073741824.0}};
    std::size_t end = 0;
    double number = 0;
    const auto [after, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error == std::errc()) end = static_cast<std::size_t>(after - text.data());
    while (end > 0 && end < text.size() && text[end] == ' ') ++end;
    const auto unit = units.find(text.substr(end));
    if (!(number > 0) || unit == units.end() || (unit->first == "%" && number > 100))
        bad_argument("memory is '" + text +
                     "', expected a share of the device such as '90 %', or a size such as '120 GB' "
                     "(or MB, TB, MiB, GiB)");
    return number * unit->second;
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
    if (options.memory.empty()) return;
    memory_ = parse_memory(options.memory, model_->total_memory()) / options.memory_models;
    model_->set_memory(static_cast<std::size_t>(memory_));
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
    domains_.reset();
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
    run(system, communicator, results);
}

void Evaluator::evaluate(const CellSystem& system, const Results& results) {
    check(results);
    try {
        return needs_domains(system) ? evaluate_domains(system, results)
                                     : evaluate_whole(system, results);
    } catch (const MemoryError& error) {
        if (memory_ == 0) {
            const auto share = 0.92 * static_cast<double>(model_->total_memory());
            throw EngineError(ErrorKind::memory,
                              std::to_string(system.num_nodes) + " atoms on " +
                                  model_->device_label() + ": " +
                                  MemoryError::sizes_text(error.needed, error.allowed) +
                                  ": set memory to '92 %' (" + MemoryError::size_text(share) +
                                  "), and domains of the system are evaluated one after the other");
        }
        correction_ *= 1.02 * error.needed / error.allowed;
    }
    estimated_nodes_ = -1;
    if (domains_ != nullptr) domains_->forget();
    evaluate(system, results);
}

bool Evaluator::needs_domains(const CellSystem& system) {
    if (memory_ == 0 || model_->reach_in_cutoffs() == 0 || system.num_nodes == 0) return false;
    if (system.num_nodes == estimated_nodes_) return !whole_;
    const auto nodes = static_cast<double>(system.num_nodes);
    guarded([&] {
        const double listed = estimate_neighbors(system, info().r_max + system.skin);
        whole_ = correction_ * model_->bytes_needed(nodes, nodes, listed * nodes) <= memory_;
        if (!whole_) neighbors_of_node_ = estimate_neighbors(system, info().r_max);
    });
    estimated_nodes_ = system.num_nodes;
    return !whole_;
}

void Evaluator::evaluate_domains(const CellSystem& system, const Results& results) {
    if (domains_ == nullptr)
        domains_ = std::make_unique<Domains>(info().r_max, model_->reach_in_cutoffs());
    const auto bytes = [&](double local, double nodes) {
        return correction_ * model_->bytes_needed(local, nodes, local * neighbors_of_node_);
    };
    const int threads = usable_threads(threads_);
    try {
        guarded([&] { domains_->cut(system, bytes, memory_, threads); });
    } catch (const MemoryError& error) {
        throw EngineError(ErrorKind::memory,
                          "memory is " + MemoryError::size_text(memory_) +
                              ", too little for the smallest domains of " +
                              std::to_string(system.num_nodes) + " atoms: set it to " +
                              MemoryError::size_text(1.25 * error.needed) + " or more");
    }
    domains_->start(results, system.num_nodes);
    for (std::size_t d = 0; d < domains_->count(); ++d) {
        const CellSystem part = domains_->take(d, system, threads);
        const Results wanted = domains_->wanted(results, model_->descriptor_width());
        try {
            evaluate_whole(part, wanted);
        } catch (const MemoryError&) {
            throw;
        } catch (const EngineError& error) {
            throw EngineError(error.kind(), error.sentence.named(domains_->atoms()));
        }
        domains_->add(results, threads);
    }
}

void Evaluator::evaluate_whole(const CellSystem& found, const Results& results) {
    if (guarded([&] { return model_->evaluate_cell(found, results); })) return;
    const auto start = std::chrono::steady_clock::now();
    if (neighbors_ == nullptr || neighbors_skin_ != found.skin) {
        neighbors_ = std::make_unique<NeighborList>(info().r_max, found.skin);
        neighbors_skin_ = found.skin;
    }
    guarded([&] {
        neighbors_->update(found.num_nodes, found.positions, found.cell, found.periodic, threads_);
    });
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
    run(system, nullptr, results);
}

void Evaluator::evaluate(const Batch& batch, const Results& results) {
    check(results);
    check_batch(batch, info().num_types());
    if (batch.on_device && results.descriptors != nullptr)
        throw EngineError(ErrorKind::unsupported,
                          "descriptors of a batch in the memory of a device are not implemented: "
                          "give positions of the host");
    for (std::int64_t s = 0; memory_ > 0 && !batch.on_device && s < batch.num_systems; ++s)
        if (needs_domains(batch.system(s))) return evaluate_each(batch, results);
    if (guarded([&] { return model_->evaluate_batch(batch, results); })) return;
    if (batch.on_device)
        throw EngineError(ErrorKind::unsupported,
                          "positions of the batch are in the memory of a device, where models on "
                          "the cpu and dispersion do not read them: give those of the host");
    if (model_->makes_edges()) return evaluate_each(batch, results);  // a network that reads points
    guarded([&] { share_groups(batch, results); });
    prepared_ = true;
}

// Evaluates the systems of a batch one after the other.
void Evaluator::evaluate_each(const Batch& batch, const Results& results) {
    const int width = model_->descriptor_width();
    for (std::int64_t s = 0; s < batch.num_systems; ++s) {
        const Results wanted = results_of(results, batch, s, width);
        const CellSystem system = batch.system(s);
        guarded([&] {
            in_system(batch, s, [&] {
                if (!needs_domains(system)) return evaluate_whole(system, wanted);
                evaluate_domains(system, wanted);
            });
        });
    }
}

// Each thread evaluates small groups of systems with a model of its own, because threads that share
// a group wait for each other in every layer. Groups do not depend on the number of threads.
void Evaluator::share_groups(const Batch& batch, const Results& results) {
    const std::vector<std::int64_t> cuts = JoinedSystems::cut(batch);
    const int width = model_->descriptor_width();
    const auto evaluate = [&](std::size_t group, Model& model, JoinedSystems& joined, int threads) {
        joined.join(batch, cuts[group], cuts[group + 1], threads);
        model.evaluate(joined.system(), nullptr, joined.wanted(results, width));
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
    if (domains_ != nullptr && !whole_) {
        out["domains"] = domains_->count();
        out["domain_nodes"] = domains_->most_nodes();
        out["domain_cuts"] = domains_->num_cuts();
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
    const std::string fixed = fixed_inputs_text(about);
    std::string text =
        about.architecture + " " + about.model_class + ", " + (fixed.empty() ? "" : fixed + ", ") +
        (about.double_precision ? "float64" : "float32") + ", " + model_->device_label();
    if (!model_->on_device())
        text += ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
    if (domains_ != nullptr && !whole_)
        text += ", " + std::to_string(domains_->count()) + " domains of at most " +
                std::to_string(domains_->most_nodes()) + " atoms";
    text += ", " + model_->kernel_summary();
    const std::string warning = KernelCache::warning();
    return warning.empty() ? text : text + "; " + warning;
}

}  // namespace mdcg
