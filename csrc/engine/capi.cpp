// The C interface: checks arguments, turns exceptions into statuses and sentences.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/device.hpp"
#include "core/interrupt.hpp"
#include "core/notice.hpp"
#include "core/text.hpp"
#include "core/threads.hpp"
#include "engine/cuda/devices.hpp"
#include "engine/cuda/model.hpp"
#include "engine/evaluator.hpp"
#include "mdcg.h"

struct mdcg_model {
    mdcg_model(std::shared_ptr<const mdcg::Package> file, const mdcg::EvaluatorOptions& options)
        : evaluator(std::move(file), options) {
        for (const std::string& name : evaluator.info().type_names) names.push_back(name.c_str());
        for (const mdcg::Input& input : evaluator.info().inputs) {
            input_names.push_back(input.name.c_str());
            input_defaults.push_back(input.default_value);
        }
    }
    mdcg::Evaluator evaluator;
    std::vector<const char*> names, input_names;
    std::vector<double> input_defaults;
    std::string report, summary;
};

namespace {

using mdcg::bad_argument;
using mdcg::EngineError;
using mdcg::ErrorKind;

thread_local mdcg::Sentence last_sentence("");
thread_local std::string last_error, last_error_about, printable_text;

// Keeps a sentence for mdcg_last_error, or an empty text if memory runs out.
template <typename Text>
void keep(const Text& sentence) noexcept {
    try {
        last_sentence = sentence;
        last_error = last_sentence.text();
    } catch (...) {
        last_error.clear();
    }
}

int (*interrupt_poll)(void* context) = nullptr;
void* interrupt_context = nullptr;

void ask_host() {
    if (interrupt_poll != nullptr && interrupt_poll(interrupt_context) != 0)
        throw mdcg::Interrupted();
}

void (*notice_function)(void* context, const char* sentence) = nullptr;
void* notice_context = nullptr;

void tell_host(const std::string& sentence) {
    if (notice_function != nullptr) notice_function(notice_context, sentence.c_str());
}

// Calls a function, and turns exceptions into a status.
template <typename Function>
mdcg_status guarded(const Function& function) noexcept {
    const mdcg::NoticeScope notices(&tell_host);
    const mdcg::InterruptScope scope(interrupt_poll != nullptr ? &ask_host : nullptr);
    try {
        function();
        return MDCG_OK;
    } catch (const EngineError& error) {
        keep(error.sentence);
        return static_cast<mdcg_status>(error.kind());
    } catch (const mdcg::Interrupted&) {
        keep("the host has interrupted the call: the model can be used again");
        return MDCG_ERROR_INTERRUPTED;
    } catch (const mdcg::ThreadError& error) {
        keep(error.what());
        return MDCG_ERROR_MEMORY;
    } catch (const std::bad_alloc&) {
        keep("out of memory: evaluate a smaller system, or use more processes");
        return MDCG_ERROR_MEMORY;
    } catch (const std::exception& error) {
        keep(error.what());
        return MDCG_ERROR_INTERNAL;
    } catch (...) {
        keep("an unknown error: please report it");
        return MDCG_ERROR_INTERNAL;
    }
}

void need(const void* pointer, const char* what) {
    if (pointer == nullptr) bad_argument(std::string(what) + " is null, expected a pointer");
}

void need_count(std::int64_t count, const char* what) {
    if (count < 0)
        bad_argument(std::string(what) + " is " + std::to_string(count) + ", expected 0 or more");
}

// Copies a caller's struct. If the caller has a newer header, fields that this library does not
// know must be 0.
template <typename Struct>
Struct read_struct(const Struct* given, const char* name) {
    static_assert(std::is_trivially_copyable_v<Struct> && offsetof(Struct, size) == 0);
    need(given, name);
    const std::size_t size = given->size;
    if (size % alignof(Struct) != 0 || size < sizeof(Struct) || size > 16 * sizeof(Struct))
        bad_argument(std::string(name) + ".size is " + std::to_string(size) + ", expected sizeof(" +
                     name + ") = " + std::to_string(sizeof(Struct)) +
                     ": set it before the call, or compile the program again with the mdcg.h of "
                     "this library");
    const auto* bytes = reinterpret_cast<const unsigned char*>(given);
    for (std::size_t i = sizeof(Struct); i < size; ++i)
        if (bytes[i] != 0)
            bad_argument(std::string(name) + " uses a field that this libmdcg (" MDCG_VERSION
                                             ") does not know: update it");
    Struct out;
    std::memcpy(&out, given, sizeof(Struct));
    return out;
}

mdcg::EvaluatorOptions options_of(const mdcg_options* options) {
    mdcg::EvaluatorOptions chosen;
    if (options == nullptr) return chosen;
    const mdcg_options given = read_struct(options, "mdcg_options");
    if (given.device != nullptr) chosen.device = given.device;
    if (given.kernels != nullptr) chosen.kernels = given.kernels;
    chosen.threads = given.threads;
    if (given.precision != nullptr) chosen.precision = given.precision;
    if (given.dispersion != nullptr) chosen.dispersion.functional = given.dispersion;
    if (given.damping != nullptr) chosen.dispersion.damping = given.damping;
    if (given.dispersion_cutoff != 0) chosen.dispersion.cutoff = given.dispersion_cutoff;
    if (given.skin != 0) chosen.skin = given.skin < 0 ? 0.0 : given.skin;
    if (given.memory != nullptr) chosen.memory = given.memory;
    need_count(given.memory_models, "mdcg_options.memory_models");
    chosen.memory_models = std::max(given.memory_models, 1);
    chosen.fixed_waves = given.fixed_waves != 0;
    return chosen;
}

// A communicator that calls the functions of the host.
class Callbacks : public mdcg::Communicator {
public:
    explicit Callbacks(const mdcg_communicator& communicator) : communicator_(communicator) {}
    void forward(void* rows, int width, int item_bytes) override {
        call("forward", communicator_.forward, rows, width, item_bytes);
    }
    void reverse(void* rows, int width, int item_bytes) override {
        call("reverse", communicator_.reverse, rows, width, item_bytes);
    }
    bool has_sent_nodes() const override { return communicator_.forward_rows != nullptr; }
    mdcg::SentNodes sent_nodes() const override {
        return {communicator_.sent, communicator_.num_sent};
    }
    void sum(std::int64_t* values, std::int64_t count) override {
        if (communicator_.sum == nullptr)
            bad_argument(
                "communicator.sum is null, and the model has a long-range sum over all "
                "processes, expected the function");
        call("sum", communicator_.sum, values, count);
    }
    void forward_rows(const void* sent, void* ghosts, int row_bytes) override {
        call("forward_rows", communicator_.forward_rows, sent, ghosts, row_bytes);
    }
    void reverse_rows(const void* ghosts, void* sent, int row_bytes) override {
        call("reverse_rows", communicator_.reverse_rows, ghosts, sent, row_bytes);
    }

    bool has_peers() const override { return communicator_.gather != nullptr; }
    mdcg::Peers peers() const override {
        return {communicator_.rank, communicator_.num_ranks, communicator_.peers,
                communicator_.num_peers};
    }
    void gather(const void* mine, void* all, int bytes) override {
        call("gather", communicator_.gather, mine, all, bytes);
    }

private:
    template <typename... Types>
    void call(const char* name, int (*function)(void*, Types...), Types... arguments) {
        const int status = function(communicator_.context, arguments...);
        if (status != 0)
            throw EngineError(ErrorKind::communication, std::string("the communicator's ") + name +
                                                            " returned " + std::to_string(status) +
                                                            ", expected 0");
    }
    mdcg_communicator communicator_;
};

// cuda/ghosts.cpp checks, with the edges, that the blocks of the peers cover `sent` and the ghosts.
void check_peers(const mdcg_communicator& communicator) {
    need_count(communicator.num_peers, "communicator.num_peers");
    if (communicator.num_peers > 0) need(communicator.peers, "communicator.peers");
    if (communicator.rank < 0 || communicator.rank >= communicator.num_ranks)
        bad_argument("communicator.rank is " + std::to_string(communicator.rank) +
                     ", and num_ranks is " + std::to_string(communicator.num_ranks) +
                     ", expected a rank from 0 to num_ranks - 1");
    for (std::int64_t i = 0; i < communicator.num_peers; ++i) {
        const int rank = communicator.peers[i].rank;
        if (rank < 0 || rank >= communicator.num_ranks || rank == communicator.rank)
            bad_argument("communicator.peers[" + std::to_string(i) + "].rank is " +
                         std::to_string(rank) + ", expected another one of the " +
                         std::to_string(communicator.num_ranks) + " ranks");
    }
}

void check_communicator(const mdcg_communicator& communicator) {
    need(reinterpret_cast<const void*>(communicator.forward), "communicator.forward");
    need(reinterpret_cast<const void*>(communicator.reverse), "communicator.reverse");
    const bool rows = communicator.forward_rows != nullptr;
    if (rows != (communicator.reverse_rows != nullptr))
        bad_argument(
            "one of communicator.forward_rows and reverse_rows is null, expected both or none");
    need_count(communicator.num_sent, "communicator.num_sent");
    if (communicator.num_sent > 0) {
        need(communicator.sent, "communicator.sent");
        need(reinterpret_cast<const void*>(communicator.forward_rows), "communicator.forward_rows");
    }
    if (communicator.gather == nullptr) return;
    need(reinterpret_cast<const void*>(communicator.forward_rows), "communicator.forward_rows");
    check_peers(communicator);
}

void check_system(const mdcg_system& system, bool reads_cell) {
    if (system.num_local < 0 || system.num_nodes < system.num_local)
        bad_argument("the system has " + std::to_string(system.num_local) + " local nodes of " +
                     std::to_string(system.num_nodes) + ", expected 0 <= num_local <= num_nodes");
    if (system.num_nodes > 0) {
        need(system.positions, "positions");
        need(system.types, "types");
    }
    need_count(system.num_edges, "num_edges");
    if (system.num_edges > 0) {
        need(system.sender, "sender");
        need(system.receiver, "receiver");
    }
    if (system.make_edges != 0 && (system.num_edges != 0 || system.sender != nullptr ||
                                   system.receiver != nullptr || system.image != nullptr))
        bad_argument("make_edges is set, and edges are given as well, expected one of both");
    if (system.num_inner < 0 || system.num_inner > system.num_local)
        bad_argument("num_inner is " + std::to_string(system.num_inner) +
                     ", expected at most the " + std::to_string(system.num_local) + " local nodes");
    need_count(system.num_copies, "num_copies");
    if (system.num_copies > 0) {
        if (system.make_edges == 0)
            bad_argument("copies of nodes are given, expected make_edges, which they are for");
        if (system.cell != nullptr && !reads_cell)
            bad_argument("copies of nodes and a cell are given, expected one of both");
        need(system.copy_node, "copy_node");
        need(system.copy_image, "copy_image");
    }
    need_count(system.num_images, "num_images");
    if (system.num_images > 0) need(system.image_shifts, "image_shifts");
    if (system.image == nullptr && system.num_copies == 0) return;
    if (system.shifts != nullptr) bad_argument("shifts and image are given, expected one of both");
}

// Whether the neighbours to be found are ghosts and copies, instead of images in a cell.
bool has_copies(const mdcg_system& system, const mdcg_communicator* communicator, bool reads_cell) {
    return (system.cell == nullptr || reads_cell) &&
           (system.num_copies > 0 || communicator != nullptr ||
            system.num_nodes > system.num_local);
}

double skin_of(const mdcg_model& model, const mdcg_system& system) {
    if (!std::isfinite(system.skin))
        bad_argument("skin is " + mdcg::number_text(system.skin) + " Å, expected a finite length");
    return system.skin == 0 ? model.evaluator.skin() : std::max(system.skin, 0.0);
}

std::array<bool, 3> periodic_of(const mdcg_system& system) {
    std::array<bool, 3> found{};
    for (std::size_t k = 0; k < 3; ++k)
        found[k] = system.periodic != nullptr ? system.periodic[k] != 0 : system.cell != nullptr;
    return found;
}

void evaluate_cell(mdcg_model& model, const mdcg_system& system,
                   const mdcg_communicator* communicator, const mdcg::Results& results) {
    if (system.num_nodes != system.num_local || communicator != nullptr)
        bad_argument(
            "make_edges is set with a cell, expected neither ghosts nor a communicator, got " +
            std::to_string(system.num_nodes - system.num_local) + " ghosts");
    const std::array<bool, 3> periodic = periodic_of(system);
    if (system.cell == nullptr && (periodic[0] || periodic[1] || periodic[2]))
        bad_argument("the system is periodic, and cell is null, expected a cell");
    model.evaluator.evaluate(
        {system.num_nodes, system.positions, system.types, system.cell, periodic.data(),
         skin_of(model, system), system.energy_weights, 0, system.inputs},
        results);
}

// A batch, and the converted array that it refers to.
struct GivenBatch {
    mdcg::Batch batch;
    std::unique_ptr<bool[]> periodic;
};

GivenBatch batch_of(const mdcg_batch& given, std::int64_t num_inputs) {
    need_count(given.num_systems, "num_systems");
    GivenBatch out;
    if (given.num_systems == 0) return out;
    need(given.first_node, "first_node");
    if (given.first_node[given.num_systems] > 0) {
        need(given.positions, "positions");
        need(given.types, "types");
    }
    if (given.cells == nullptr && given.periodic != nullptr)
        bad_argument("periodic is given, and cells is null, expected cells");
    const std::int64_t directions = 3 * given.num_systems;
    out.periodic = std::make_unique<bool[]>(static_cast<std::size_t>(directions));
    for (std::int64_t i = 0; i < directions; ++i)
        out.periodic[static_cast<std::size_t>(i)] =
            given.cells != nullptr && (given.periodic == nullptr || given.periodic[i] != 0);
    out.batch = {given.num_systems,    given.first_node, given.positions,
                 given.types,          given.cells,      out.periodic.get(),
                 given.on_device != 0, given.inputs,     num_inputs};
    return out;
}

}  // namespace

extern "C" {

int mdcg_abi_version(void) { return MDCG_ABI_VERSION; }

const char* mdcg_version(void) { return MDCG_VERSION; }

const char* mdcg_last_error(void) { return last_error.c_str(); }

const char* mdcg_last_error_about(const int64_t* names) {
    try {
        last_error_about = last_sentence.text(names);
        return last_error_about.c_str();
    } catch (const std::bad_alloc&) {
        return mdcg_last_error();
    }
}

const char* mdcg_printable(const char* text) {
    const mdcg_status status = guarded([&] {
        need(text, "text");
        printable_text = mdcg::printable(text);
    });
    return status == MDCG_OK ? printable_text.c_str() : "";
}

void mdcg_set_interrupt(int (*poll)(void* context), void* context) {
    interrupt_poll = poll;
    interrupt_context = context;
}

void mdcg_set_notice(void (*tell)(void* context, const char* sentence), void* context) {
    notice_function = tell;
    notice_context = context;
}

mdcg_status mdcg_open(const char* path, const mdcg_options* options, mdcg_model** model) {
    return guarded([&] {
        need(model, "model");
        *model = nullptr;
        need(path, "path");
        const mdcg::EvaluatorOptions chosen = options_of(options);
        *model = new mdcg_model(mdcg::Package::open(path), chosen);
    });
}

mdcg_status mdcg_open_same(const mdcg_model* opened, const mdcg_options* options,
                           mdcg_model** model) {
    return guarded([&] {
        need(model, "model");
        *model = nullptr;
        need(opened, "opened");
        *model = new mdcg_model(opened->evaluator.file(), options_of(options));
    });
}

mdcg_status mdcg_find_device(const char* name, mdcg_device* device) {
    return guarded([&] {
        need(name, "name");
        mdcg_device out = read_struct(device, "mdcg_device");
        out.number = mdcg::parse_device(name);
        if (out.number < 0)
            bad_argument("device is 'cpu', expected 'cuda', 'cuda:N', 'hip' or 'hip:N'");
        mdcg::guarded(out.number, [&] {
            out.count = mdcg::device_count(mdcg::vendor_of(out.number));
            const auto uuid = mdcg::device_uuid(out.number);
            std::copy(uuid.begin(), uuid.end(), out.uuid);
        });
        out.number %= mdcg::FIRST_HIP_DEVICE;
        std::memcpy(device, &out, sizeof out);
    });
}

void mdcg_close(mdcg_model* model) { delete model; }

mdcg_status mdcg_prepare(mdcg_model* model) {
    return guarded([&] {
        need(model, "model");
        model->evaluator.prepare();
    });
}

mdcg_status mdcg_check_peers(mdcg_model* model, const mdcg_communicator* communicator) {
    return guarded([&] {
        need(model, "model");
        const mdcg_communicator host = read_struct(communicator, "mdcg_communicator");
        need(reinterpret_cast<const void*>(host.gather), "communicator.gather");
        check_peers(host);
        Callbacks callbacks(host);
        model->evaluator.model().check_peers(callbacks);
    });
}

mdcg_status mdcg_describe(const mdcg_model* model, mdcg_info* info) {
    return guarded([&] {
        need(model, "model");
        mdcg_info out = read_struct(info, "mdcg_info");
        const mdcg::ModelInfo& about = model->evaluator.info();
        out.r_max = about.r_max;
        out.num_types = about.num_types();
        out.type_names = model->names.data();
        out.atomic_numbers = about.atomic_numbers.empty() ? nullptr : about.atomic_numbers.data();
        out.double_precision = about.double_precision ? 1 : 0;
        out.num_exchanges = model->evaluator.model().num_exchanges();
        out.manifest = model->evaluator.package().manifest_text().c_str();
        out.exchange_bytes =
            model->evaluator.model().max_exchanged_width() * (about.double_precision ? 8 : 4);
        out.digest = model->evaluator.package().digest().c_str();
        out.has_energy = model->evaluator.model().has_energy() ? 1 : 0;
        out.has_charges = model->evaluator.model().has_charges() ? 1 : 0;
        out.num_inputs = static_cast<int>(model->input_names.size());
        out.input_names = model->input_names.data();
        out.input_defaults = model->input_defaults.data();
        out.is_long_range = model->evaluator.model().reads_system() ? 1 : 0;
        out.has_dipoles = model->evaluator.model().has_dipoles() ? 1 : 0;
        std::memcpy(info, &out, sizeof out);
    });
}

int mdcg_descriptor_width(const mdcg_model* model) {
    if (model == nullptr) {
        keep("model is null, expected a pointer");
        return -1;
    }
    return model->evaluator.model().descriptor_width();
}

mdcg_status mdcg_set_threads(mdcg_model* model, int threads) {
    return guarded([&] {
        need(model, "model");
        model->evaluator.set_threads(threads);
    });
}

mdcg_status mdcg_evaluate(mdcg_model* model, const mdcg_system* system,
                          const mdcg_communicator* communicator, const mdcg_results* results) {
    return guarded([&] {
        need(model, "model");
        const mdcg_system given = read_struct(system, "mdcg_system");
        const mdcg_results wanted = read_struct(results, "mdcg_results");
        // beside ghosts and copies the cell is for long-range sums alone
        const bool reads_cell = model->evaluator.model().reads_system();
        check_system(given, reads_cell);
        if (given.make_edges != 0 && !has_copies(given, communicator, reads_cell))
            return evaluate_cell(*model, given, communicator, wanted);
        mdcg::System inner;
        inner.num_local = given.num_local;
        inner.num_nodes = given.num_nodes;
        inner.positions = given.positions;
        inner.types = given.types;
        inner.num_edges = given.num_edges;
        inner.sender = given.sender;
        inner.receiver = given.receiver;
        inner.shifts = given.shifts;
        inner.images = given.image;
        inner.num_images = given.num_images;
        inner.image_shifts = given.image_shifts;
        inner.make_edges = given.make_edges != 0;
        inner.skin = inner.make_edges ? skin_of(*model, given) : 0;
        inner.num_copies = given.num_copies;
        inner.copy_node = given.copy_node;
        inner.copy_image = given.copy_image;
        inner.energy_weights = given.energy_weights;
        inner.num_inner = given.num_inner;
        inner.inputs = given.inputs;
        const std::array<bool, 3> periodic = periodic_of(given);
        inner.cell = given.cell;
        if (given.cell != nullptr || given.periodic != nullptr) inner.periodic = periodic.data();
        // Numbers that differ from the numbers of the model's list mean a new list.
        const mdcg::ListNumbers& held = model->evaluator.list();
        if (given.list != nullptr && given.list->edges == held.edges)
            inner.list = {held.edges, given.list->shifts == held.shifts ? held.shifts : 0};
        if (communicator == nullptr) {
            model->evaluator.evaluate(inner, nullptr, wanted);
        } else {
            const mdcg_communicator host = read_struct(communicator, "mdcg_communicator");
            check_communicator(host);
            Callbacks callbacks(host);
            model->evaluator.evaluate(inner, &callbacks, wanted);
        }
        if (given.list != nullptr) *given.list = {held.edges, held.shifts};
    });
}

mdcg_status mdcg_evaluate_batch(mdcg_model* model, const mdcg_batch* batch,
                                const mdcg_results* results) {
    return guarded([&] {
        need(model, "model");
        const mdcg_batch given = read_struct(batch, "mdcg_batch");
        const mdcg_results wanted = read_struct(results, "mdcg_results");
        const auto num_inputs = static_cast<std::int64_t>(model->input_names.size());
        model->evaluator.evaluate(batch_of(given, num_inputs).batch, wanted);
    });
}

const char* mdcg_report(mdcg_model* model) {
    const mdcg_status status = guarded([&] {
        need(model, "model");
        model->report = model->evaluator.report();
    });
    return status == MDCG_OK ? model->report.c_str() : "{}";
}

const char* mdcg_summary(mdcg_model* model) {
    const mdcg_status status = guarded([&] {
        need(model, "model");
        model->summary = mdcg::printable(model->evaluator.summary());
    });
    return status == MDCG_OK ? model->summary.c_str() : "";
}

}  // extern "C"
