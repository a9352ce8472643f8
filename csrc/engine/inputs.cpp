#include "engine/inputs.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "core/integers.hpp"
#include "core/text.hpp"
#include "engine/error.hpp"
#include "engine/package/limits.hpp"

namespace mdcg {

namespace {

Activation read_activation(const Fields& fields) {
    try {
        return parse_activation(fields.text("activation", "none"));
    } catch (const std::invalid_argument& error) {
        fields.fail(error.what());
    }
}

void activate_in_place(Activation kind, double factor, std::vector<double>& x) {
    std::vector<double> slope(x.size());
    simd<double>().activate(kind, static_cast<std::int64_t>(x.size()), factor, x.data(), x.data(),
                            slope.data());
}

std::string values_text(const std::vector<Input>& inputs, const std::vector<double>& values) {
    std::string text;
    for (std::size_t i = 0; i < inputs.size(); ++i)
        text += (i > 0 ? ", " : "") + inputs[i].name + "=" + number_text(values[i]);
    return text;
}

// Whether two lists have the same numbers; NaN is like NaN.
bool same(const std::vector<double>& a, const std::vector<double>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) {
        return x == y || (std::isnan(x) && std::isnan(y));
    });
}

}  // namespace

InputTensors::InputTensors(std::shared_ptr<const Package> package, const ModelInfo& info)
    : file_(std::move(package)), package_(file_), inputs_(info.inputs) {
    for (const Input& input : inputs_) defaults_.push_back(input.default_value);
    values_ = defaults_;
    embeddings_.resize(inputs_.size());
    const Fields manifest(package_->manifest(), *package_, "manifest");
    if (!manifest.has("input_network")) return;
    if (inputs_.empty()) manifest.fail("has an input_network, and no inputs");
    read(manifest, info);
    std::map<std::string, const void*> numbers;
    for (auto& [name, dependent] : dependent_) {
        const auto* const source = static_cast<const unsigned char*>(dependent.tensor->data);
        const std::size_t bytes =
            size(dependent.tensor->count) * about(dependent.tensor->dtype).bytes;
        dependent.data.assign(source, source + bytes);
        numbers[name] = dependent.data.data();
    }
    if (!dependent_.empty()) package_ = Package::with_numbers(file_, numbers);
}

void InputTensors::read(const Fields& manifest, const ModelInfo& info) {
    const Fields network = manifest.object("input_network");
    units_ = network.integer("units", 1, limits::MAX_INPUT_UNITS);
    activation_ = read_activation(network);
    factor_ = network.number("factor", 1.0);
    const std::vector<Fields> entries = manifest.objects("inputs");
    for (std::size_t i = 0; i < entries.size(); ++i) {
        const Fields& entry = entries[i];
        Embedding& to = embeddings_[i];
        if (entry.has("embedding")) {
            if (inputs_[i].count == 0) entry.fail("has an embedding, and no count of values");
            if (entry.has("layers")) entry.fail("has an embedding and layers, expected one");
            to.rows =
                entry.values<double>("embedding", {inputs_[i].count, units_}, Content::constants);
        }
        if (!entry.has("layers")) continue;
        const std::vector<Fields> layers = entry.objects("layers");
        if (layers.empty() || layers.size() > limits::MAX_RADIAL_LAYERS)
            entry.fail("layers", std::to_string(layers.size()) + " layers",
                       "1 to " + std::to_string(limits::MAX_RADIAL_LAYERS));
        for (std::size_t k = 0; k < layers.size(); ++k) {
            const auto in =
                k == 0 ? std::int64_t(1) : static_cast<std::int64_t>(to.layers.back().out);
            to.layers.push_back(read_layer(layers[k], in, k + 1 == layers.size()));
        }
    }
    const nlohmann::json& factors = network.json("factors");
    if (!factors.is_object()) network.fail("factors", "no object", "names of tensors by tensor");
    const Fields named = network.object("factors");
    for (const auto& [name, value] : factors.items()) {
        const Tensor* const tensor = package_->find(name);
        if (tensor == nullptr || (tensor->dtype != Dtype::f32 && tensor->dtype != Dtype::f64))
            named.fail(name.c_str(), "factors of no tensor", "the name of a tensor of numbers");
        DependentTensor dependent;
        dependent.tensor = tensor;
        std::vector<std::int64_t> shape = tensor->shape;
        const bool shared = named.tensor(name.c_str()).shape.size() == shape.size() &&
                            !shape.empty() && shape[0] == info.num_types();
        if (shared) shape.erase(shape.begin());  // the same for all types
        shape.insert(shape.begin(), units_);
        dependent.factors = named.values<double>(name.c_str(), shape, Content::constants);
        dependent.items = size(tensor->count);
        if (shared) dependent.items /= size(tensor->shape[0]);
        dependent_.emplace(name, std::move(dependent));
    }
    const bool has_defaults = std::none_of(defaults_.begin(), defaults_.end(),
                                           [](double value) { return std::isnan(value); });
    hidden_of_file_ = has_defaults ? hidden(defaults_) : std::vector<double>(size(units_), 0.0);
}

InputTensors::Layer InputTensors::read_layer(const Fields& fields, std::int64_t in,
                                             bool last) const {
    Layer layer;
    layer.weight = fields.values<double>("weight", {in, last ? units_ : -1}, Content::constants);
    layer.in = size(in);
    layer.out = layer.weight.size() / layer.in;
    if (layer.out < 1 || layer.out > size(limits::MAX_INPUT_UNITS))
        fields.fail("weight", std::to_string(layer.out) + " outputs",
                    "1 to " + std::to_string(limits::MAX_INPUT_UNITS));
    if (fields.has("bias"))
        layer.bias = fields.values<double>("bias", {static_cast<std::int64_t>(layer.out)},
                                           Content::constants);
    layer.activation = read_activation(fields);
    layer.factor = fields.number("factor", 1.0);
    return layer;
}

std::vector<std::string> InputTensors::names() const {
    std::vector<std::string> found;
    for (const auto& [name, dependent] : dependent_) found.push_back(name);
    return found;
}

std::vector<double> InputTensors::complete(const double* given) const {
    std::vector<double> found = defaults_;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
        const Input& input = inputs_[i];
        if (given != nullptr && !std::isnan(given[i])) found[i] = given[i];
        if (std::isnan(found[i]))
            bad_argument("the model reads " + input.name +
                         " of each system, which was not given and has no default, expected " +
                         input.range_text() + ": give it, or convert the model with --set " +
                         input.name + "=VALUE");
        if (!input.takes(found[i]))
            bad_argument(input.name + " is " + number_text(found[i]) + ", expected " +
                         input.range_text());
    }
    return found;
}

std::vector<double> InputTensors::hidden(const std::vector<double>& values) const {
    std::vector<double> sum(size(units_), 0.0);
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
        const Embedding& from = embeddings_[i];
        std::vector<double> row{values[i]};
        if (!from.rows.empty()) {
            const auto number = static_cast<std::int64_t>(values[i]) - *inputs_[i].lowest;
            const auto first = from.rows.begin() + number * units_;
            row.assign(first, first + units_);
        } else if (from.layers.empty()) {
            continue;  // operations read the number itself
        }
        for (const Layer& layer : from.layers) {
            std::vector<double> next = layer.bias;
            next.resize(layer.out, 0.0);
            for (std::size_t k = 0; k < layer.in; ++k)
                for (std::size_t u = 0; u < layer.out; ++u)
                    next[u] += row[k] * layer.weight[k * layer.out + u];
            activate_in_place(layer.activation, layer.factor, next);
            row = std::move(next);
        }
        for (std::size_t u = 0; u < sum.size(); ++u) sum[u] += row[u];
    }
    activate_in_place(activation_, factor_, sum);
    return sum;
}

// Adds the change of the hidden units times the factors to the numbers of the file.
template <typename T>
void InputTensors::fill(const DependentTensor& from, const std::vector<double>& change,
                        std::vector<unsigned char>& to) const {
    const auto* const source = static_cast<const unsigned char*>(from.tensor->data);
    to.assign(source, source + from.data.size());
    if (change.empty()) return;
    std::vector<double> added(from.items, 0.0);
    for (std::size_t u = 0; u < change.size(); ++u)
        for (std::size_t i = 0; i < from.items; ++i)
            added[i] += change[u] * from.factors[u * from.items + i];
    for (std::size_t i = 0; i < size(from.tensor->count); ++i) {
        T number;
        std::memcpy(&number, source + i * sizeof(T), sizeof(T));
        number = static_cast<T>(static_cast<double>(number) + added[i % from.items]);
        if (!std::isfinite(number)) throw std::range_error("not finite");
        std::memcpy(to.data() + i * sizeof(T), &number, sizeof(T));
    }
}

bool InputTensors::set(std::vector<double> values) {
    if (same(values, values_)) return false;
    std::map<std::string, std::vector<unsigned char>> found;
    try {
        std::vector<double> change;  // empty: the numbers of the file
        if (!same(values, defaults_)) change = hidden(values);
        for (std::size_t u = 0; u < change.size(); ++u) change[u] -= hidden_of_file_[u];
        for (const auto& [name, dependent] : dependent_)
            dependent.tensor->dtype == Dtype::f64 ? fill<double>(dependent, change, found[name])
                                                  : fill<float>(dependent, change, found[name]);
    } catch (const std::range_error&) {
        bad_argument("with " + values_text(inputs_, values) +
                     ", weights of the model are not finite numbers, expected values like those "
                     "that it was trained with");
    }
    for (auto& [name, dependent] : dependent_)  // operations know the addresses
        std::copy(found[name].begin(), found[name].end(), dependent.data.begin());
    values_ = std::move(values);
    return true;
}

}  // namespace mdcg
