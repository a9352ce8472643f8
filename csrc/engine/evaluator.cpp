#include "engine/evaluator.hpp"

#include <omp.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
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

void Evaluator::evaluate(CellSystem found, const Results& results) {
    check(results);
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
    system.num_local = system.num_nodes = found.num_nodes;
    system.positions = found.positions;
    system.types = found.types;
    system.list = neighbors_->numbers();
    system.num_edges = neighbors_->num_edges();
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
    if (guarded([&] { return model_->evaluate_batch(batch, results); })) return;
    if (batch.on_device)
        throw EngineError(ErrorKind::unsupported,
                          "positions of the batch are in the memory of a device, where models on "
                          "the cpu and dispersion do not read them: give those of the host");
    const int width = model_->descriptor_width();
    if (model_->makes_edges()) {  // a network that reads points
        for (std::int64_t s = 0; s < batch.num_systems; ++s)
            guarded([&] {
                in_system(batch, s, [&] {
                    model_->evaluate_cell(batch.system(s), results_of(results, batch, s, width));
                });
            });
        return;
    }
    guarded([&] { share_groups(batch, results); });
    prepared_ = true;
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
    text += ", " + model_->kernel_summary();
    const std::string warning = KernelCache::warning();
    return warning.empty() ? text : text + "; " + warning;
}

}  // namespace mdcg
