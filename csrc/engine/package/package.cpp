#include "engine/package/package.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/files.hpp"
#include "core/sha256.hpp"
#include "core/text.hpp"
#include "engine/error.hpp"
#include "engine/package/budget.hpp"
#include "engine/package/fields.hpp"
#include "engine/package/limits.hpp"

namespace mdcg {

namespace {

using nlohmann::json;

constexpr DtypeInfo DTYPES[] = {{Dtype::f32, "F32", "float32", 4},
                                {Dtype::f64, "F64", "float64", 8},
                                {Dtype::u8, "U8", "uint8", 1},
                                {Dtype::i32, "I32", "int32", 4}};

template <typename From, typename T>
void convert(const Tensor& tensor, std::vector<T>& out) {
    const char* source = static_cast<const char*>(tensor.data);
    for (std::int64_t i = 0; i < tensor.count; ++i) {
        From item;  // tensors need not be aligned
        std::memcpy(&item, source + i * static_cast<std::int64_t>(sizeof(From)), sizeof(From));
        if (!std::isfinite(static_cast<double>(item)))
            throw EngineError(ErrorKind::file, "tensor " + tensor.name + " has the value " +
                                                   number_text(static_cast<double>(item)) +
                                                   " at position " + std::to_string(i) +
                                                   ", expected finite numbers: the file is damaged "
                                                   "or was made from a broken model");
        out[static_cast<std::size_t>(i)] = static_cast<T>(item);
        if (!std::isfinite(static_cast<double>(out[static_cast<std::size_t>(i)])))
            throw EngineError(ErrorKind::file,
                              "tensor " + tensor.name + " has the value " +
                                  number_text(static_cast<double>(item)) +
                                  ", which float32 cannot hold: convert the model to float64");
    }
}

// Makes all text of a manifest printable; returns whether that changed anything.
bool make_printable(json& value) {
    bool changed = false;
    if (value.is_string()) {
        auto& text = value.get_ref<std::string&>();
        std::string shown = printable(text);
        changed = shown != text;
        if (changed) text = std::move(shown);
        return changed;
    }
    bool renamed = false;
    for (const auto& [name, item] : value.items()) {
        if (item.is_string() || item.is_structured()) changed |= make_printable(item);
        renamed |= value.is_object() && printable(name) != name;
    }
    if (!renamed) return changed;
    json named = json::object();
    for (const auto& [name, item] : value.items()) named.emplace(printable(name), std::move(item));
    value = std::move(named);
    return true;
}

const char* name_of(Package::Kind kind) {
    return kind == Package::Kind::model ? ".mdcg package" : ".mdcg-kernels file";
}

std::map<std::string, std::int64_t> read_fixed_inputs(const Fields& options) {
    std::map<std::string, std::int64_t> found;
    if (!options.has("graph_fields")) return found;
    const json& pairs = options.json("graph_fields");
    const auto refuse = [&] {
        options.fail("graph_fields", pairs.dump(), "pairs of different names and whole numbers");
    };
    if (!pairs.is_array()) refuse();
    for (const json& pair : pairs)
        if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() ||
            !pair[1].is_number_integer() ||
            !found.emplace(pair[0].get<std::string>(), pair[1].get<std::int64_t>()).second)
            refuse();
    return found;
}

std::vector<Input> read_inputs(const Fields& manifest) {
    std::vector<Input> found;
    std::set<std::string> names;
    for (const Fields& fields : manifest.objects("inputs")) {
        Input input;
        input.name = fields.text("name");
        if (input.name.empty() || !names.insert(input.name).second)
            fields.fail("name", "\"" + input.name + "\"", "different names");
        const json& whole = fields.json("whole");
        if (!whole.is_boolean()) fields.fail("whole", whole.dump(), "true or false");
        input.whole = whole.get<bool>();
        if (fields.has("lowest") || fields.has("count")) {
            input.lowest =
                fields.integer("lowest", -limits::MAX_INPUT_VALUES, limits::MAX_INPUT_VALUES);
            if (!input.whole) fields.fail("whole", "false", "true where a value is the lowest");
        }
        if (fields.has("count")) input.count = fields.integer("count", 1, limits::MAX_INPUT_VALUES);
        if (fields.has("default")) {
            input.default_value = fields.number("default");
            if (!input.takes(input.default_value))
                fields.fail("default", number_text(input.default_value), input.range_text());
        }
        found.push_back(std::move(input));
    }
    if (found.empty() || found.size() > limits::MAX_INPUTS)
        manifest.fail("inputs", std::to_string(found.size()) + " inputs",
                      "1 to " + std::to_string(limits::MAX_INPUTS));
    return found;
}

}  // namespace

bool Input::takes(double value) const {
    if (!std::isfinite(value) || (whole && value != std::floor(value))) return false;
    return (!lowest || value >= static_cast<double>(*lowest)) &&
           (count == 0 || value < static_cast<double>(*lowest + count));
}

std::string Input::range_text() const {
    if (!whole) return "a finite number";
    if (!lowest) return "a whole number";
    const std::string from = "a whole number from " + std::to_string(*lowest);
    return from + (count == 0 ? " on" : " to " + std::to_string(*lowest + count - 1));
}

bool nests_too_deep(const char* text, const char* end, int most) {
    int depth = 0;
    bool quoted = false;
    for (; text != end; ++text) {
        if (quoted) {
            if (*text == '\\' && text + 1 != end)
                ++text;
            else if (*text == '"')
                quoted = false;
        } else if (*text == '"') {
            quoted = true;
        } else if (*text == '[' || *text == '{') {
            if (++depth > most) return true;
        } else if (*text == ']' || *text == '}') {
            --depth;
        }
    }
    return false;
}

const DtypeInfo& about(Dtype dtype) { return DTYPES[static_cast<std::size_t>(dtype)]; }

template <typename T>
std::vector<T> Tensor::read() const {
    std::vector<T> out(static_cast<std::size_t>(count));
    switch (dtype) {
        case Dtype::f32:
            convert<float>(*this, out);
            break;
        case Dtype::f64:
            convert<double>(*this, out);
            break;
        case Dtype::i32:
            convert<std::int32_t>(*this, out);
            break;
        case Dtype::u8:
            throw EngineError(ErrorKind::file, "tensor " + name + " has bytes, expected numbers");
    }
    return out;
}

template std::vector<float> Tensor::read<float>() const;
template std::vector<double> Tensor::read<double>() const;

std::string Tensor::shape_text() const {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i)
        text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
    return text + "]";
}

// Limits the length of sentences, because they quote parts of damaged files.
void Package::fail(const std::string& what) const {
    constexpr std::size_t LONGEST = 400;
    std::string sentence = what;
    if (sentence.size() > LONGEST) sentence = sentence.substr(0, LONGEST) + "...";
    throw EngineError(ErrorKind::file, path_ + ": " + sentence);
}

const Tensor* Package::find(const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
}

std::shared_ptr<const Package> Package::open(const std::string& path, Kind kind) {
    std::shared_ptr<Package> package(new Package());
    package->path_ = path;
    // opening a pipe would wait for its other end
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status{};
    if (file.number() < 0 || fstat(file.number(), &status) != 0)
        package->fail(std::string("cannot be opened: ") + std::strerror(errno));
    if (!S_ISREG(status.st_mode))
        package->fail(std::string("is no file, expected a ") + name_of(kind));
    const auto whole = static_cast<std::uint64_t>(status.st_size);
    package->read(kind, whole, [&](std::uint64_t bytes) {
        std::string& content = package->content_;
        const std::size_t have = content.size();
        // reserved at once, because tensors already point to where their numbers will be
        if (have > 0) content.reserve(static_cast<std::size_t>(whole));
        try {
            append_part(file.number(), have, bytes - have, content);
        } catch (const std::runtime_error& error) {
            package->fail(std::string("cannot be read: ") + error.what());
        }
        if (content.size() < bytes)
            package->fail("became shorter while it was read: open it again");
    });
    return package;
}

std::shared_ptr<const Package> Package::parse(std::string content, const std::string& path,
                                              Kind kind) {
    std::shared_ptr<Package> package(new Package());
    package->path_ = path;
    package->content_ = std::move(content);
    package->read(kind, package->content_.size(), [](std::uint64_t) {});
    return package;
}

std::shared_ptr<const Package> Package::with_manifest(std::shared_ptr<const Package> of,
                                                      json manifest) {
    std::shared_ptr<Package> package(new Package());
    package->path_ = of->path_;
    package->digest_ = of->digest_;
    package->tensors_ = of->tensors_;
    package->text_ = manifest.dump();
    package->manifest_ = std::make_unique<json>(std::move(manifest));
    package->owner_ = std::move(of);
    return package;
}

std::shared_ptr<const Package> Package::with_numbers(
    std::shared_ptr<const Package> of, const std::map<std::string, const void*>& numbers) {
    std::shared_ptr<Package> package(new Package());
    package->path_ = of->path_;
    package->digest_ = of->digest_;
    package->text_ = of->text_;
    package->manifest_ = std::make_unique<json>(of->manifest());
    package->tensors_ = of->tensors_;
    for (const auto& [name, data] : numbers) package->tensors_.at(name).data = data;
    package->owner_ = of->owner_ != nullptr ? of->owner_ : std::move(of);
    return package;
}

// Returns the length of the header. The first nine bytes also tell what other file it may be.
std::uint64_t Package::header_bytes(Kind kind, std::uint64_t whole) const {
    const std::string expected = std::string(", expected a ") + name_of(kind);
    if (whole < 9) fail("has " + std::to_string(whole) + " bytes" + expected + ": copy it again");
    const auto* bytes = reinterpret_cast<const unsigned char*>(content_.data());
    std::uint64_t length = 0;
    for (int i = 7; i >= 0; --i) length = length << 8 | bytes[i];
    if (bytes[8] != '{' || length < 2 || length > limits::MAX_HEADER_BYTES) {
        const bool zip = std::memcmp(bytes, "PK\3\4", 4) == 0;
        if (zip || (bytes[0] == 0x80 && bytes[1] >= 2 && bytes[1] <= 5))
            fail(std::string("is a ") + (zip ? "zip archive" : "pickle") + ", as checkpoints are" +
                 expected +
                 (kind == Kind::model ? ": convert the checkpoint with 'mdcg-patch' first"
                                      : ": make one with 'python -m mdcg kernels'"));
        fail("begins with other bytes than a " + std::string(name_of(kind)) +
             ": it is something else, or damaged");
    }
    if (length > whole - 8)
        fail("has " + std::to_string(whole) + " bytes, expected more than the " +
             std::to_string(length) + " of its header: it is truncated, copy it again");
    if (whole > MAX_FILE_BYTES)
        fail("has " + memory_text(static_cast<double>(whole)) + ", expected at most " +
             memory_text(static_cast<double>(MAX_FILE_BYTES)) +
             ": no model is as large, so it is damaged");
    return length;
}

void Package::read(Kind kind, std::uint64_t whole,
                   const std::function<void(std::uint64_t)>& load) try {
    load(std::min<std::uint64_t>(whole, 9));
    const std::uint64_t length = header_bytes(kind, whole);
    load(8 + length);
    const char* text = content_.data() + 8;
    const auto refuse_deep = [this](const char* from, const char* to, const char* what) {
        if (nests_too_deep(from, to, limits::MAX_DEPTH))
            fail(std::string(what) + " nests lists or objects more than " +
                 std::to_string(limits::MAX_DEPTH) + " times: the file is damaged");
    };
    refuse_deep(text, text + length, "the header");
    const json header = json::parse(text, text + length);
    const std::uint64_t data_bytes = whole - 8 - length;

    std::string index;  // the part of the header that the digest covers
    std::vector<std::pair<std::uint64_t, std::uint64_t>> extents;
    for (const auto& [name, entry] : header.items()) {
        if (name == "__metadata__") continue;
        Tensor tensor;
        tensor.name = printable(name);
        const auto bad = [&](const std::string& what) {
            fail("tensor " + name + " " + what + ": the file is damaged");
        };
        if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
            !entry.contains("shape") || !entry["shape"].is_array() ||
            !entry.contains("data_offsets") || !entry["data_offsets"].is_array() ||
            entry["data_offsets"].size() != 2)
            bad("has no dtype, shape or data_offsets");
        const auto dtype = entry["dtype"].get<std::string>();
        const auto* const known =
            std::find_if(std::begin(DTYPES), std::end(DTYPES),
                         [&](const DtypeInfo& each) { return dtype == each.file_name; });
        if (known == std::end(DTYPES)) bad("has dtype " + dtype + ", expected F32, F64, I32 or U8");
        tensor.dtype = known->dtype;
        std::uint64_t count = 1;
        for (const json& size : entry["shape"]) {
            if (!size.is_number_unsigned()) bad("has a shape that is no list of sizes");
            const auto n = size.get<std::uint64_t>();
            if (n != 0 && count > whole / n) bad("is larger than the file");
            count *= n;
            tensor.shape.push_back(static_cast<std::int64_t>(n));
        }
        tensor.count = static_cast<std::int64_t>(count);
        const json& offsets = entry["data_offsets"];
        if (!offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned())
            bad("has offsets that are no sizes");
        const auto begin = offsets[0].get<std::uint64_t>(), end = offsets[1].get<std::uint64_t>();
        if (begin > end || end > data_bytes || end - begin != count * known->bytes)
            bad("lies at " + std::to_string(begin) + " to " + std::to_string(end) + " of " +
                std::to_string(data_bytes) + " bytes, expected " +
                std::to_string(count * known->bytes) + " bytes inside");
        tensor.data = text + length + begin;
        index.append(name).append(1, '\0').append(dtype).append(1, '\0');
        for (const std::int64_t n : tensor.shape) index += std::to_string(n) + ",";
        index += " " + std::to_string(begin) + "," + std::to_string(end) + "\n";
        extents.emplace_back(begin, end);
        if (!tensors_.emplace(tensor.name, tensor).second) bad("has the name of another one");
    }
    std::sort(extents.begin(), extents.end());
    std::uint64_t at = 0;
    for (const auto& [begin, end] : extents) {
        if (begin != at) fail("tensors overlap or leave gaps: the file is damaged");
        at = end;
    }
    if (at != data_bytes)
        fail("has " + std::to_string(data_bytes) + " bytes of tensors, expected " +
             std::to_string(at) + ": the file is damaged");

    const char* const key = kind == Kind::model ? "mdcg" : "mdcg_kernels";
    const json metadata = header.value("__metadata__", json());
    if (!metadata.is_object() || !metadata.contains(key) || !metadata[key].is_string())
        fail(std::string("is a safetensors file without the manifest of a ") + name_of(kind));
    text_ = metadata[key].get<std::string>();
    refuse_deep(text_.data(), text_.data() + text_.size(), "the manifest");
    manifest_ = std::make_unique<json>(json::parse(text_));
    if (!manifest_->is_object()) fail("the manifest is no JSON object");
    const bool printable_text = !make_printable(*manifest_);
    const Fields fields(*manifest_, *this, "manifest");
    const std::int64_t format = fields.integer("format", 1, std::numeric_limits<int>::max());
    const int newest = kind == Kind::model ? PACKAGE_FORMAT : KERNELS_FORMAT;
    const char* const again =
        kind == Kind::model ? "convert the model again" : "make it again (python -m mdcg kernels)";
    if (format > newest)
        fail(std::string("has ") + (kind == Kind::model ? "package format " : "format ") +
             std::to_string(format) + ", this is mdcg " MDCG_VERSION " and reads up to " +
             std::to_string(newest) + ": install a newer mdcg, or " + again);
    const auto digest = metadata.find("sha256");
    if (digest == metadata.end() || !digest->is_string())
        fail(std::string("has no SHA-256 of what it holds, which every ") + name_of(kind) +
             " has: " + again);
    load(whole);
    Sha256 own;
    own.update(text_);
    const bool old = kind == Kind::model && format < 2;
    if (!old) own.update("\0", 1).update(index);
    digest_ = own.update(text + length, data_bytes).hex();
    if (digest_ != digest->get<std::string>())
        fail(
            "was altered or damaged after it was written (its SHA-256 differs): copy it again, "
            "or " +
            std::string(again));
    if (old) digest_ = Sha256().update(digest_).update(index).hex();
    if (kind == Kind::model && format < CLEAN_FORMAT) drop_old_entries();
    // models are made of numbers alone
    for (auto each = tensors_.begin(); kind == Kind::model && each != tensors_.end();) {
        if (!old && each->second.dtype == Dtype::u8)
            fail("tensor " + each->first + " has dtype U8, expected F32, F64 or I32");
        each = each->second.dtype == Dtype::u8 ? tensors_.erase(each) : std::next(each);
    }
    if (!printable_text) text_ = manifest_->dump();
} catch (const json::exception& error) {
    const std::string reason = error.what();
    fail("the header is damaged: " + reason.substr(0, reason.find("; last read")));
}

// Removes what packages of older formats hold besides the model: kernels and 3j symbols.
void Package::drop_old_entries() {
    for (const char* key : {"kernels", "cuda_kernels", "cuda_binaries"}) manifest_->erase(key);
    const auto layers = manifest_->find("layers");
    if (layers == manifest_->end()) return;
    for (json& layer : *layers) {
        if (!layer.is_object()) continue;
        layer.erase("kernel");
        if (layer.value("type", json()) != "conv") continue;
        for (const char* key : {"nonzeros", "values"}) {
            const json name = layer.value(key, json());
            if (name.is_string()) tensors_.erase(name.get<std::string>());
            layer.erase(key);
        }
    }
}

ModelInfo read_model_info(const Package& package) {
    using namespace limits;
    const Fields fields(package.manifest(), package, "manifest");
    ModelInfo info;
    info.architecture = fields.text("architecture");
    info.model_class = fields.text("model_class", "");
    info.type_names = fields.texts("type_names");
    if (info.type_names.empty() || info.type_names.size() > MAX_TYPES)
        fields.fail("type_names", std::to_string(info.type_names.size()) + " names",
                    "1 to " + std::to_string(MAX_TYPES));
    const std::set<std::string> different(info.type_names.begin(), info.type_names.end());
    if (different.size() != info.type_names.size() || different.count("") != 0)
        fields.fail("type_names", "a list with a name twice or an empty one", "different names");
    if (fields.has("atomic_numbers")) {
        for (const double z : fields.numbers("atomic_numbers")) {
            if (!(z >= 0 && z <= MAX_ATOMIC_NUMBER) || z != std::floor(z))
                fields.fail("atomic_numbers", number_text(z),
                            "integers from 0 to " + std::to_string(MAX_ATOMIC_NUMBER));
            info.atomic_numbers.push_back(static_cast<int>(z));
        }
        if (info.atomic_numbers.size() != info.type_names.size())
            fields.fail("atomic_numbers", std::to_string(info.atomic_numbers.size()) + " numbers",
                        "one for each of " + std::to_string(info.type_names.size()) + " types");
    }
    info.r_max = fields.number("r_max");
    if (!(info.r_max > 0 && info.r_max <= MAX_LENGTH))
        fields.fail("r_max", number_text(info.r_max), "a length in angstrom, up to 1000");
    const std::string dtype = fields.text("dtype");
    if (dtype != "float32" && dtype != "float64") fields.fail("dtype", dtype, "float32 or float64");
    info.double_precision = dtype == "float64";
    for (const auto& [key, unit] :
         {std::pair<const char*, const char*>{"energy_unit", "eV"}, {"length_unit", "angstrom"}})
        if (fields.text(key, unit) != unit) fields.fail(key, fields.text(key), unit);
    const std::string vector = fields.text("edge_vector", "receiver_minus_sender");
    if (vector != "receiver_minus_sender" && vector != "sender_minus_receiver")
        fields.fail("edge_vector", vector, "receiver_minus_sender or sender_minus_receiver");
    info.flip_edges = vector == "sender_minus_receiver";
    if (fields.has("inputs"))
        info.inputs = read_inputs(fields);
    else if (fields.has("options"))
        info.fixed_inputs = read_fixed_inputs(fields.object("options"));
    return info;
}

std::string inputs_text(const ModelInfo& info) {
    std::string text;
    for (const auto& [name, value] : info.fixed_inputs)
        text += (text.empty() ? "made for " : ", ") + name + "=" + std::to_string(value);
    for (const Input& input : info.inputs) {
        text += (text.empty() ? "reads " : ", ") + input.name;
        if (!std::isnan(input.default_value))
            text += " (default " + number_text(input.default_value) + ")";
    }
    return text;
}

}  // namespace mdcg
