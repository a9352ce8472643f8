#include "engine/cuda/pass_kernel.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/error.hpp"

namespace mdcg {

namespace {

constexpr std::int64_t MIN_TABLE_DEGREE = 3, MAX_TABLE_DEGREE = 15;

constexpr const char* NAMES[] = {
    "order",   "sender",  "row_ptr", "place",   "types",   "sender_type", "active",   "num_active",
    "n_rows",  "n_types", "n_adds",  "n_parts", "n_flip",  "unit",        "length",   "places",
    "table",   "x",       "y",       "w",       "g",       "out",         "dx",       "dy",
    "dw",      "de",      "n_de",    "n_group", "n_first", "n_local",     "receiver", "node",
    "one_way", "own",     "xa",      "yb",      "wc"};
static_assert(std::size(NAMES) == static_cast<std::size_t>(CudaArgument::count));

std::vector<CudaArgument> read_arguments(const Fields& fields, const char* key) {
    std::vector<CudaArgument> found;
    for (const std::string& name : fields.texts(key)) {
        const auto* const at = std::find(std::begin(NAMES), std::end(NAMES), name);
        if (at == std::end(NAMES))
            fields.fail(key, "\"" + name + "\"",
                        "operands that this version of mdcg knows: convert the model again");
        found.push_back(static_cast<CudaArgument>(at - std::begin(NAMES)));
    }
    return found;
}

int read_target(const Fields& fields) {
    const std::string text = fields.text("target");
    const int found = parse_device_target(text);
    if (found == 0) fields.fail("target", "\"" + text + "\"", "a target such as \"sm_90\"");
    return found;
}

}  // namespace

CudaPassKernel::CudaPassKernel(const OpSpec& layer, std::string pass, Widths widths)
    : layer_(layer.index),
      where_(layer.fields.where()),
      pass_(std::move(pass)),
      widths_(std::move(widths)) {}

CudaPassKernel::Variant CudaPassKernel::read(const Fields& fields) {
    Variant variant;
    variant.programs = fields.texts("programs");
    variant.arguments = read_arguments(fields, "arguments");
    variant.zeroed = read_arguments(fields, "zeroed");
    variant.run = fields.integer("run", 1, 1 << 24);
    variant.resident = static_cast<int>(fields.integer("resident", 1, 32));
    for (const Fields& each : fields.objects("entries")) {
        Entry entry;
        entry.name = each.text("name");
        const auto programs = static_cast<std::int64_t>(variant.programs.size());
        entry.program = static_cast<std::size_t>(each.integer("program", 0, programs - 1));
        entry.threads = static_cast<int>(each.integer("threads", 1, 1024));
        entry.shared_bytes = static_cast<int>(each.integer("shared_bytes", 0, 1 << 18));
        entry.rows = each.integer("rows", 1, 1024);
        entry.max_warp_groups =
            static_cast<int>(each.integer("max_warp_groups", 1, 1024 / entry.threads));
        entry.stream = static_cast<int>(each.integer("stream", 0, KernelStreams::KERNELS - 1));
        variant.entries.push_back(std::move(entry));
    }
    // only results may be cleared, nothing that a kernel reads
    for (const CudaArgument name : variant.zeroed)
        if (name != CudaArgument::out && name != CudaArgument::dx && name != CudaArgument::dy)
            fields.fail("zeroed", NAMES[static_cast<std::size_t>(name)], "out, dx or dy");
    if (variant.entries.empty()) fields.fail("entries", "empty", "at least one kernel");
    return variant;
}

void CudaPassKernel::prepare(CudaKernels& kernels) {
    const KernelFile& file = kernels.file();
    const int capability = kernels.compute_capability();
    int lowest = 0;
    chosen_ = Variant();
    for (const nlohmann::json* const entry : file.passes(layer_, pass_)) {
        const Fields fields(*entry, file.package(), where_ + ", " + pass_ + " pass");
        const int target = read_target(fields);
        if (is_gfx(target) != is_gfx(capability)) continue;  // for devices of another vendor
        const Fields found = fields.object("widths");
        for (const auto& [operand, width] : widths_)
            if (found.integer(operand, 0, std::int64_t(1) << 40) != width)
                fields.fail("widths", std::to_string(found.integer(operand, 0, 1LL << 40)),
                            std::to_string(width) + " items in a row of " + operand);
        Variant variant = read(fields);
        variant.capability = target;
        lowest = lowest == 0 ? target : std::min(lowest, target);
        if (variant.capability > capability || variant.capability <= chosen_.capability) continue;
        const auto number = [&](const char* name, int least) {
            return fields.has(name)
                       ? static_cast<int>(fields.integer(name, least, MAX_TABLE_DEGREE))
                       : 0;
        };
        degree_ = number("degree", MIN_TABLE_DEGREE);
        singles_ = number("singles", 0);
        chosen_ = std::move(variant);
    }
    if (lowest == 0)
        throw EngineError(
            ErrorKind::unsupported,
            where_ +
                (is_gfx(capability) ? " has no kernel for AMD's devices for the "
                                    : " has no CUDA kernel for the ") +
                pass_ +
                " pass, because its tensor product is too large for one: use device \"cpu\"");
    if (chosen_.entries.empty())
        throw EngineError(ErrorKind::unsupported, where_ + ": " + too_old(capability, lowest));
    for (Entry& entry : chosen_.entries)
        entry.function = kernels.program(chosen_.programs[entry.program], entry.name,
                                         entry.max_warp_groups * entry.shared_bytes);
}

bool CudaPassKernel::zeroes(CudaArgument name) const {
    return std::find(chosen_.zeroed.begin(), chosen_.zeroed.end(), name) != chosen_.zeroed.end();
}

int CudaPassKernel::streams() const {
    int last = 0;
    for (const Entry& entry : chosen_.entries) last = std::max(last, entry.stream);
    return last + 1;
}

void CudaPassKernel::launch(const StreamOf& stream_of, const CudaArguments& arguments,
                            int warp_groups) const {
    std::vector<std::int64_t> values;
    values.reserve(chosen_.arguments.size());
    for (const CudaArgument name : chosen_.arguments) values.push_back(arguments[name]);
    const std::int64_t runs = arguments[CudaArgument::n_rows] * chosen_.run;
    for (const Entry& entry : chosen_.entries) {
        const int number = std::min(warp_groups, entry.max_warp_groups);
        entry.function.launch(stream_of(entry.stream), ceil_div(runs, entry.rows),
                              number * entry.threads, number * entry.shared_bytes, values);
    }
}

}  // namespace mdcg
