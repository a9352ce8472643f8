#include "engine/edges/radial.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "core/integers.hpp"
#include "core/text.hpp"
#include "engine/edges/layout.hpp"
#include "engine/package/limits.hpp"

namespace mdcg {

namespace {

template <typename T>
std::int64_t padded(std::int64_t items) {
    const std::int64_t align = static_cast<std::int64_t>(64 / sizeof(T));
    return ceil_div(items, align) * align;
}

double whole_power_of(double x, int n) {
    double found = 1;
    for (int i = 0; i < n; ++i) found *= x;
    return found;
}

void read_basis(const Fields& fields, RadialSpec& spec) {
    BasisFunctions& f = spec.functions;
    const std::string kind = fields.text("kind");
    if (kind == "bessel") {
        f.kind = BasisKind::bessel;
        spec.basis_values = fields.values<double>("weights", {-1}, Content::constants);
        f.factor = fields.number("prefactor");
    } else if (kind == "gaussian") {
        f.kind = BasisKind::gaussian;
        spec.basis_values = fields.values<double>("centers", {-1}, Content::constants);
        f.factor = fields.number("coefficient");
    } else if (kind == "chebyshev") {
        f.kind = BasisKind::chebyshev;
        f.count = static_cast<int>(fields.integer("order", 1, limits::MAX_CHEBYSHEV_ORDER));
    } else {
        fields.fail("kind", "'" + kind + "'", "bessel, gaussian or chebyshev");
    }
    if (kind != "chebyshev") f.count = static_cast<int>(spec.basis_values.size());
    if (f.count == 0) fields.fail("a radial basis of no functions");
    const std::string argument = fields.text("argument", "length");
    if (argument != "length" && argument != "normalized")
        fields.fail("argument", "'" + argument + "'", "length or normalized");
    f.normalized = argument == "normalized";
}

void read_transform(const Fields& fields, RadialSpec& spec) {
    BasisFunctions& f = spec.functions;
    const std::string kind = fields.text("kind");
    if (kind == "agnesi") {
        f.transform = TransformKind::agnesi;
        f.a = fields.number("a");
        f.q = fields.number("q");
        f.p = fields.number("p");
    } else if (kind == "soft") {
        f.transform = TransformKind::soft;
        f.a = fields.number("alpha");
    } else {
        fields.fail("kind", "'" + kind + "'", "agnesi or soft");
    }
    const std::int64_t n = spec.num_types;
    spec.r_0 = fields.values<double>("r_0", {n, n}, Content::constants);
    for (const double r : spec.r_0)
        if (!(r > 0)) fields.fail("r_0", number_text(r), "lengths over 0");
}

void read_cutoff(const Fields& fields, RadialSpec& spec) {
    const std::string kind = fields.text("kind");
    if (kind == "polynomial") {
        spec.functions.cutoff_power = fields.number("p");
        check_cutoff_power(fields, spec.functions.cutoff_power);
    } else if (kind == "xplor") {
        const double start = spec.functions.cutoff_start = fields.number("start");
        for (const double r : spec.r_max)
            if (!(start >= r * limits::MIN_XPLOR_START && start < r))
                fields.fail("start", number_text(start),
                            number_text(r * limits::MIN_XPLOR_START, 4) +
                                " or more and less than the r_max of " + number_text(r));
    } else {
        fields.fail("kind", "'" + kind + "'", "polynomial or xplor");
    }
}

void read_layer(const Fields& fields, std::int64_t in, std::int64_t out, RadialSpec::Layer& layer) {
    const Tensor& weight = fields.tensor("weight", {in, out});
    layer.in = static_cast<int>(in);
    layer.out = static_cast<int>(weight.shape[1]);
    if (layer.out < 1 || layer.out > limits::MAX_RADIAL_WIDTH)
        fields.fail("weight", weight.shape_text(),
                    "1 .. " + std::to_string(limits::MAX_RADIAL_WIDTH) + " outputs");
    layer.weight = weight.read<double>();
    if (fields.has("bias")) layer.bias = fields.values<double>("bias", {layer.out});
    if (fields.has("layer_norm")) {
        const Fields norm = fields.object("layer_norm");
        layer.norm_weight = norm.values<double>("weight", {layer.out});
        layer.norm_bias = norm.values<double>("bias", {layer.out});
        layer.epsilon = norm.number("epsilon");
        if (!(layer.epsilon > 0))
            norm.fail("epsilon", number_text(layer.epsilon), "a number over 0");
    }
    const std::string name = fields.text("activation", "none");
    try {
        layer.activation = parse_activation(name);
    } catch (const std::invalid_argument& error) {
        fields.fail(error.what());
    }
    layer.factor = fields.number("factor", 1.0);
}

}  // namespace

std::vector<double> read_cutoffs(const Fields& fields, const ModelInfo& info) {
    const std::int64_t n = info.num_types();
    std::vector<double> found;
    if (fields.is_text("r_max"))
        found = fields.values<double>("r_max", {n, n}, Content::constants);
    else
        found = {fields.number("r_max")};
    for (const double r : found)
        if (!(r > 0 && r <= info.r_max * (1 + limits::LENGTH_TOLERANCE)))
            fields.fail("r_max", number_text(r),
                        "a length over 0, up to the package's r_max of " + number_text(info.r_max));
    return found;
}

void check_cutoff_power(const Fields& fields, double p) {
    if (!(p >= limits::MIN_CUTOFF_POWER && p <= limits::MAX_CUTOFF_POWER))
        fields.fail("p", number_text(p), "2 to 200");
}

int RadialSpec::outputs(const Fields& fields) {
    const std::vector<Fields> layers = fields.objects("layers");
    if (layers.empty()) fields.fail("layers", "no layers", "a network");
    const std::int64_t width = layers.back().tensor("weight", {-1, -1}).shape[1];
    if (width < 1 || width > limits::MAX_RADIAL_WIDTH)
        layers.back().fail("weight", std::to_string(width) + " outputs",
                           "1 .. " + std::to_string(limits::MAX_RADIAL_WIDTH));
    return static_cast<int>(width);
}

RadialSpec RadialSpec::read(const Fields& fields, const ModelInfo& info, int outputs,
                            const std::vector<int>& powers) {
    RadialSpec spec;
    spec.num_types = info.num_types();
    spec.table_bytes = info.layer_tables;
    const std::int64_t n = info.num_types();
    spec.r_max = read_cutoffs(fields, info);
    read_basis(fields.object("basis"), spec);
    if (fields.has("transform")) read_transform(fields.object("transform"), spec);
    if (fields.has("cutoff")) read_cutoff(fields.object("cutoff"), spec);
    const std::string on = fields.text("cutoff_on", "basis");
    if (on != "basis" && on != "weights")
        fields.fail("cutoff_on", "'" + on + "'", "basis or weights");
    spec.functions.cutoff_on_basis = on == "basis";

    const std::vector<Fields> layers = fields.objects("layers");
    if (layers.empty() || layers.size() > limits::MAX_RADIAL_LAYERS)
        fields.fail("layers", std::to_string(layers.size()) + " layers",
                    "1 .. " + std::to_string(limits::MAX_RADIAL_LAYERS));
    std::int64_t in = spec.functions.count;
    for (std::size_t i = 0; i < layers.size(); ++i) {
        const bool last = i + 1 == layers.size();
        RadialSpec::Layer layer;
        read_layer(layers[i], in, last ? outputs : -1, layer);
        in = layer.out;
        if (last && (layer.activation != Activation::none || !layer.norm_weight.empty()))
            layers[i].fail("the last layer has an activation or a norm, expected neither");
        if (last && layer.factor != 1.0)
            for (std::vector<double>* numbers : {&layer.weight, &layer.bias})
                for (double& x : *numbers) x *= layer.factor;
        spec.layers.push_back(std::move(layer));
    }
    for (const bool sender : {true, false}) {
        const char* key = sender ? "sender" : "receiver";
        if (!fields.has(key)) continue;
        if (spec.layers.size() < 2)
            fields.fail(std::string("field `") + key +
                        "` needs a hidden layer to be added to, and there is none");
        const std::string name = fields.text(key);
        if (fields.package().find(name) != nullptr)
            (sender ? spec.sender_table : spec.receiver_table) =
                fields.values<double>(key, {n, spec.layers[0].out});
        else
            (sender ? spec.sender_value : spec.receiver_value) = name;
    }
    if (!powers.empty()) {
        if (!spec.layers.back().bias.empty())
            layers.back().fail("a bias in the last layer does not go with solid harmonics");
        spec.multiply_by_powers(powers);
    }
    spec.exact = !fields.has("table");
    if (!spec.exact) {
        (void)fields.object("table");
        if (!spec.sender_value.empty() || !spec.receiver_value.empty())
            fields.fail(
                "a table needs a network of length and types alone, this one sees features");
    }
    return spec;
}

void RadialSpec::multiply_by_powers(const std::vector<int>& of_outputs) {
    powers = of_outputs;
    std::sort(powers.begin(), powers.end());
    powers.erase(std::unique(powers.begin(), powers.end()), powers.end());
    Layer& last = layers.back();
    const std::size_t in = size(last.in), out = size(last.out);
    std::vector<double> rows(powers.size() * in * out, 0.0);
    for (std::size_t o = 0; o < out; ++o) {
        const auto found = std::lower_bound(powers.begin(), powers.end(), of_outputs[o]);
        const auto first = static_cast<std::size_t>(found - powers.begin()) * in;
        for (std::size_t k = 0; k < in; ++k) rows[(first + k) * out + o] = last.weight[k * out + o];
    }
    last.weight = std::move(rows);
}

bool RadialSpec::has_table() const {
    if (!sender_value.empty() || !receiver_value.empty()) return false;
    return std::none_of(layers.begin(), layers.end(), [](const Layer& layer) {
        return layer.activation == Activation::relu || layer.activation == Activation::abs;
    });
}

void RadialSpec::check_finite(const Fields& fields) const {
    if (!sender_value.empty() || !receiver_value.empty()) return;
    constexpr std::int64_t COUNT = 16;
    const Radial<double> network(*this);
    const std::vector<std::int32_t> types(COUNT, 0);
    std::vector<double> lengths;
    for (int i = 0; i < COUNT; ++i) lengths.push_back(pair_r_max(0, 0) * (i + 0.5) / COUNT);
    AlignedArray<char> work(network.work_bytes(COUNT));
    AlignedArray<double> hidden(size(COUNT * network.hidden_stride()));
    network.forward({COUNT, COUNT, lengths.data(), types.data(), types.data()}, {}, {}, work.data(),
                    hidden.data(), false);
    const std::vector<double> matrix = last();
    const std::size_t outputs = size(layers.back().out);
    for (std::int64_t i = 0; i < COUNT; ++i)
        for (std::size_t o = 0; o < outputs; ++o) {
            double weight = 0;
            for (std::size_t k = 0; k < size(units()); ++k)
                weight += hidden[size(i * network.hidden_stride()) + k] * matrix[k * outputs + o];
            if (!std::isfinite(weight))
                fields.fail("the radial network gives NaN or infinity within its cutoff of " +
                            number_text(pair_r_max(0, 0), 4) +
                            " Å: the training has diverged, or the model is damaged");
        }
}

std::vector<double> RadialSpec::last() const {
    std::vector<double> matrix = layers.back().weight;
    matrix.insert(matrix.end(), layers.back().bias.begin(), layers.back().bias.end());
    return matrix;
}

bool RadialSpec::symmetric() const {
    for (int a = 0; a < num_types; ++a)
        for (int b = 0; b < a; ++b)
            if (pair_r_max(a, b) != pair_r_max(b, a) || pair_r_0(a, b) != pair_r_0(b, a))
                return false;
    return sender_table == receiver_table;
}

bool RadialSpec::depends_on_sender() const {
    for (int a = 0; a < num_types; ++a)
        for (int b = 0; b < num_types; ++b)
            if (pair_r_max(a, b) != pair_r_max(a, 0) || pair_r_0(a, b) != pair_r_0(a, 0))
                return true;
    return !sender_table.empty();
}

template <typename T>
Radial<T>::Radial(const RadialSpec& spec) : spec_(spec) {
    spec_.functions.values = spec_.basis_values.data();
    basis_stride_ = padded<T>(spec_.functions.count);
    widest_ = basis_stride_;
    for (std::size_t i = 0; i + 1 < spec_.layers.size(); ++i) {
        const RadialSpec::Layer& from = spec_.layers[i];
        Layer layer;
        layer.in = from.in;
        layer.out = from.out;
        layer.stride = padded<T>(from.out);
        layer.weight = PackedMatrix<T>(from.weight.data(), from.in, from.out, from.out, 1);
        layer.weight_t = PackedMatrix<T>(from.weight.data(), from.out, from.in, 1, from.out);
        const auto copy = [&](const std::vector<double>& source, AlignedArray<T>& target) {
            target.resize(size(layer.stride));
            for (std::size_t k = 0; k < source.size(); ++k) target[k] = static_cast<T>(source[k]);
        };
        copy(from.bias, layer.bias);
        layer.norm = !from.norm_weight.empty();
        copy(from.norm_weight, layer.norm_weight);
        copy(from.norm_bias, layer.norm_bias);
        if (layer.norm) copy(std::vector<double>(size(from.out), 1.0), layer.ones);
        layer.epsilon = static_cast<T>(from.epsilon);
        layer.activation = from.activation;
        layer.factor = static_cast<T>(from.factor);
        widest_ = std::max(widest_, layer.stride);
        layers_.push_back(std::move(layer));
    }
    const auto table = [&](const std::vector<double>& source, AlignedArray<T>& target) {
        if (source.empty()) return;
        const auto stride = size(first_stride());
        const auto width = size(layers_[0].out);
        const auto rows = size(spec_.num_types);
        target.resize(rows * stride);
        for (std::size_t t = 0; t < rows; ++t)
            for (std::size_t k = 0; k < width; ++k)
                target[t * stride + k] = static_cast<T>(source[t * width + k]);
    };
    table(spec_.sender_table, sender_table_);
    table(spec_.receiver_table, receiver_table_);
    units_ = spec_.units();
    last_in_ = spec_.layers.back().in;
    constant_unit_ = !spec_.layers.back().bias.empty();
    hidden_stride_ = padded<T>(units_);
    widest_ = std::max(widest_, hidden_stride_);
}

template <typename T>
typename Radial<T>::Memory Radial<T>::lay_out(std::int64_t capacity, char* work) const {
    Memory m;
    Layout layout(work);
    layout.take(m.r_max, capacity);
    layout.take(m.r_0, capacity);
    layout.take(m.cutoff, capacity);
    layout.take(m.cutoff_slope, capacity);
    layout.take(m.basis, capacity * basis_stride_);
    layout.take(m.basis_slope, capacity * basis_stride_);
    layout.take(m.first, capacity * widest_);
    layout.take(m.second, capacity * widest_);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        layout.take(m.layers[i].value, capacity * layers_[i].stride);
        layout.take(m.layers[i].slope, capacity * layers_[i].stride);
        m.layers[i].normalised = m.layers[i].scale = nullptr;
        if (layers_[i].norm) {
            layout.take(m.layers[i].normalised, capacity * layers_[i].stride);
            layout.take(m.layers[i].scale, capacity);
        }
    }
    m.bytes = layout.bytes();
    return m;
}

template <typename T>
std::size_t Radial<T>::work_bytes(std::int64_t capacity) const {
    return lay_out(capacity, nullptr).bytes;
}

template <typename T>
void Radial<T>::forward(const RadialEdges& edges, const RadialRows<T>& sender,
                        const RadialRows<T>& receiver, char* work, T* hidden, bool keep) const {
    const SimdTable<T>& kernels = simd<T>();
    const std::int64_t n = edges.capacity;
    const Memory m = lay_out(n, work);
    for (std::int64_t e = 0; e < n; ++e) {
        // unused edges are longer than any cutoff
        const bool used = e < edges.count;
        m.r_max[e] =
            used ? spec_.pair_r_max(edges.receiver_type[e], edges.sender_type[e]) : spec_.r_max[0];
        if (!spec_.r_0.empty())
            m.r_0[e] = used ? spec_.pair_r_0(edges.receiver_type[e], edges.sender_type[e]) : 1.0;
    }
    kernels.basis(spec_.functions, {n, edges.length, m.r_max, spec_.r_0.empty() ? nullptr : m.r_0},
                  basis_stride_, m.basis, m.basis_slope, m.cutoff, m.cutoff_slope);

    const T* input = m.basis;
    std::int64_t input_stride = basis_stride_;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        const Layer& layer = layers_[i];
        T* value = m.layers[i].value;
        const std::int64_t stride = layer.stride;
        for (std::int64_t e = 0; e < n; ++e)
            std::copy_n(layer.bias.data(), stride, value + e * stride);
        if (i == 0) {
            for (std::int64_t e = 0; e < edges.count; ++e) {
                T* row = value + e * stride;
                if (sender_table_.size() != 0)
                    kernels.add_scaled(stride, T(1),
                                       sender_table_.data() + edges.sender_type[e] * stride, row);
                if (receiver_table_.size() != 0)
                    kernels.add_scaled(stride, T(1),
                                       receiver_table_.data() + edges.receiver_type[e] * stride,
                                       row);
                for (const RadialRows<T>* rows : {&sender, &receiver})
                    if (rows->values != nullptr)
                        kernels.add_scaled(stride, T(1), rows->values + rows->node[e] * rows->width,
                                           row);
            }
        }
        kernels.gemm(n, input, input_stride, layer.weight, value, stride, nullptr, true);
        if (layer.norm)
            kernels.layer_norm(n, layer.out, stride, layer.epsilon, layer.norm_weight.data(),
                               layer.norm_bias.data(), value, m.layers[i].normalised,
                               m.layers[i].scale);
        kernels.activate(layer.activation, n * stride, layer.factor, value, value,
                         keep ? m.layers[i].slope : nullptr);
        input = value;
        input_stride = stride;
    }
    for (std::int64_t e = 0; e < n; ++e) {
        T* row = hidden + e * hidden_stride_;
        if (!(edges.length[e] < m.r_max[e])) {
            std::fill_n(row, hidden_stride_, T(0));
            continue;
        }
        std::copy_n(input + e * input_stride, last_in_, row);
        std::fill(row + last_in_, row + hidden_stride_, T(0));
        if (constant_unit_) row[last_in_] = T(1);
        for (std::size_t i = spec_.powers.size(); i-- > 0;) {
            const T power = static_cast<T>(whole_power_of(edges.length[e], spec_.powers[i]));
            T* const to = row + std::int64_t(i) * last_in_;
            for (int k = 0; k < last_in_; ++k) to[k] = power * row[k];
        }
        if (!spec_.functions.cutoff_on_basis)
            kernels.scale(hidden_stride_, static_cast<T>(m.cutoff[e]), row, row);
    }
}

// Turns the gradients of units times powers of the length into those of the units `last`, in place.
// Returns the gradient of the length through the powers.
template <typename T>
double Radial<T>::fold_powers(double length, const T* last, T* d) const {
    double slope = 0;
    for (std::size_t i = 0; i < spec_.powers.size(); ++i) {
        const int power = spec_.powers[i];
        const T factor = static_cast<T>(whole_power_of(length, power));
        const T* const from = d + std::int64_t(i) * last_in_;
        double along = 0;
        for (int k = 0; k < last_in_; ++k) {
            along += static_cast<double>(from[k]) * last[k];
            d[k] = factor * from[k] + (i > 0 ? d[k] : T(0));
        }
        if (power > 0) slope += along * power * whole_power_of(length, power - 1);
    }
    return slope;
}

template <typename T>
void Radial<T>::backward(const RadialEdges& edges, const RadialRows<T>& sender,
                         const RadialRows<T>& receiver, char* work, T* d_hidden,
                         double* d_length) const {
    const SimdTable<T>& kernels = simd<T>();
    const std::int64_t n = edges.capacity;
    const Memory m = lay_out(n, work);
    const std::size_t depth = layers_.size();
    const T* last = depth == 0 ? m.basis : m.layers[depth - 1].value;
    const std::int64_t last_stride = depth == 0 ? basis_stride_ : layers_.back().stride;

    T* d = m.first;
    T* other = m.second;
    for (std::int64_t e = 0; e < n; ++e) {
        T* from = d_hidden + e * hidden_stride_;
        T* to = d + e * last_stride;
        if (!(edges.length[e] < m.r_max[e])) {
            std::fill_n(to, last_stride, T(0));
            continue;
        }
        T factor = T(1);
        if (!spec_.powers.empty())
            d_length[e] += fold_powers(edges.length[e], last + e * last_stride, from) *
                           (spec_.functions.cutoff_on_basis ? 1.0 : m.cutoff[e]);
        if (!spec_.functions.cutoff_on_basis) {
            T total = constant_unit_ ? from[last_in_] : T(0);
            for (int k = 0; k < last_in_; ++k) total += from[k] * last[e * last_stride + k];
            d_length[e] += static_cast<double>(total) * m.cutoff_slope[e];
            factor = static_cast<T>(m.cutoff[e]);
        }
        for (int k = 0; k < last_in_; ++k) to[k] = from[k] * factor;
        std::fill(to + last_in_, to + last_stride, T(0));
    }
    for (std::size_t i = depth; i-- > 0;) {
        const Layer& layer = layers_[i];
        kernels.multiply(n * layer.stride, m.layers[i].slope, d);
        if (layer.norm)
            kernels.layer_norm_gradient(n, layer.out, layer.stride, layer.norm_weight.data(),
                                        m.layers[i].normalised, m.layers[i].scale, d);
        if (i == 0)
            for (const RadialRows<T>* rows : {&sender, &receiver})
                if (rows->gradient != nullptr)
                    for (std::int64_t e = 0; e < edges.count; ++e)
                        kernels.add_scaled(layer.stride, T(1), d + e * layer.stride,
                                           rows->gradient + rows->node[e] * rows->width);
        const std::int64_t stride = i == 0 ? basis_stride_ : layers_[i - 1].stride;
        kernels.gemm(n, d, layer.stride, layer.weight_t, other, stride, nullptr, false);
        std::swap(d, other);
    }
    const int count = spec_.functions.count;
    for (std::int64_t e = 0; e < edges.count; ++e) {
        const T* row = d + e * basis_stride_;
        const T* slope = m.basis_slope + e * basis_stride_;
        double total = 0;
        for (int k = 0; k < count; ++k) total += static_cast<double>(row[k]) * slope[k];
        d_length[e] += total;
    }
}

template <typename T>
void Radial<T>::derivative(const RadialEdges& edges, char* work, T* slopes) const {
    const SimdTable<T>& kernels = simd<T>();
    const std::int64_t n = edges.capacity;
    const Memory m = lay_out(n, work);
    T *d = m.first, *other = m.second;
    std::int64_t stride = basis_stride_;
    std::copy_n(m.basis_slope, n * stride, d);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        const Layer& layer = layers_[i];
        kernels.gemm(n, d, stride, layer.weight, other, layer.stride, nullptr, false);
        stride = layer.stride;
        if (layer.norm) {  // the Jacobian of a norm without weights is symmetric
            kernels.layer_norm_gradient(n, layer.out, stride, layer.ones.data(),
                                        m.layers[i].normalised, m.layers[i].scale, other);
            for (std::int64_t e = 0; e < n; ++e)
                kernels.multiply(stride, layer.norm_weight.data(), other + e * stride);
        }
        kernels.multiply(n * stride, m.layers[i].slope, other);
        std::swap(d, other);
    }
    const T* const last = layers_.empty() ? m.basis : m.layers[layers_.size() - 1].value;
    for (std::int64_t e = 0; e < n; ++e) {
        T* const row = slopes + e * hidden_stride_;
        std::fill_n(row, hidden_stride_, T(0));
        if (!(edges.length[e] < m.r_max[e])) continue;
        const T *const by_length = d + e * stride, *const value = last + e * stride;
        const bool on_basis = spec_.functions.cutoff_on_basis;
        const T cutoff = on_basis ? T(1) : static_cast<T>(m.cutoff[e]);
        const T slope = on_basis ? T(0) : static_cast<T>(m.cutoff_slope[e]);
        for (int k = 0; k < last_in_; ++k) row[k] = cutoff * by_length[k] + slope * value[k];
        if (constant_unit_ && !on_basis) row[last_in_] = slope;
        for (std::size_t i = spec_.powers.size(); i-- > 0;) {
            const int n = spec_.powers[i];
            const T power = static_cast<T>(whole_power_of(edges.length[e], n));
            const T steep =
                n == 0 ? T(0) : cutoff * static_cast<T>(n * whole_power_of(edges.length[e], n - 1));
            T* const to = row + std::int64_t(i) * last_in_;
            for (int k = 0; k < last_in_; ++k) to[k] = power * row[k] + steep * value[k];
        }
    }
}

template class Radial<float>;
template class Radial<double>;

}  // namespace mdcg
