#include "engine/package/fields.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "engine/error.hpp"
#include "engine/package/limits.hpp"

namespace mdcg {

namespace {

using Json = nlohmann::json;

std::string shown(const Json& value) {
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() > 60) text = text.substr(0, 57) + "...";
    return text;
}

}  // namespace

Fields::Fields(const Json& object, const Package& package, std::string where)
    : object_(&object), package_(&package), where_(std::move(where)) {
    if (!object.is_object()) fail("is " + shown(object) + ", expected an object");
}

void Fields::fail(const std::string& sentence) const { package_->fail(where_ + ": " + sentence); }

void Fields::fail(const char* key, const std::string& got, const std::string& expected) const {
    fail(std::string("field ") + key + " is " + got + ", expected " + expected);
}

bool Fields::has(const char* key) const {
    const auto found = object_->find(key);
    return found != object_->end() && !found->is_null();
}

bool Fields::is_text(const char* key) const { return has(key) && object_->at(key).is_string(); }

const Json& Fields::at(const char* key, const char* expected) const {
    const auto found = object_->find(key);
    if (found == object_->end()) fail(key, "absent", expected);
    return *found;
}

const Json& Fields::json(const char* key) const { return at(key, "a value"); }

double Fields::number(const char* key) const {
    const auto& value = at(key, "a number");
    if (!value.is_number() || !std::isfinite(value.get<double>()))
        fail(key, shown(value), "a finite number");
    return value.get<double>();
}

double Fields::number(const char* key, double otherwise) const {
    return has(key) ? number(key) : otherwise;
}

std::int64_t Fields::integer(const char* key, std::int64_t min, std::int64_t max) const {
    const auto& value = at(key, "an integer");
    const std::string expected =
        "an integer from " + std::to_string(min) + " to " + std::to_string(max);
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() &&
         value.get<std::uint64_t>() >
             static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())))
        fail(key, shown(value), expected);
    const auto number = value.get<std::int64_t>();
    if (number < min || number > max) fail(key, shown(value), expected);
    return number;
}

std::string Fields::text(const char* key) const {
    const auto& value = at(key, "a string");
    if (!value.is_string()) fail(key, shown(value), "a string");
    return value.get<std::string>();
}

std::string Fields::text(const char* key, const std::string& otherwise) const {
    return has(key) ? text(key) : otherwise;
}

std::vector<std::string> Fields::texts(const char* key) const {
    const auto& value = at(key, "a list of strings");
    if (!value.is_array()) fail(key, shown(value), "a list of strings");
    std::vector<std::string> found;
    for (const auto& item : value) {
        if (!item.is_string()) fail(key, shown(value), "a list of strings");
        found.push_back(item.get<std::string>());
    }
    return found;
}

std::vector<double> Fields::numbers(const char* key) const {
    const auto& value = at(key, "a list of numbers");
    if (!value.is_array()) fail(key, shown(value), "a list of numbers");
    std::vector<double> found;
    for (const auto& item : value) {
        if (!item.is_number() || !std::isfinite(item.get<double>()))
            fail(key, shown(value), "a list of finite numbers");
        found.push_back(item.get<double>());
    }
    return found;
}

Fields Fields::object(const char* key) const {
    Fields inner(at(key, "an object"), *package_, where_ + ", " + key);
    inner.owned_ = owned_;
    return inner;
}

Fields Fields::object_in_text(const char* key) const {
    const std::string inner_text = text(key);
    if (nests_too_deep(inner_text.data(), inner_text.data() + inner_text.size(), limits::MAX_DEPTH))
        fail(key,
             "a text that nests lists or objects more than " + std::to_string(limits::MAX_DEPTH) +
                 " times",
             "an object as text");
    auto parsed = std::make_shared<Json>(Json::parse(inner_text, nullptr, false));
    if (!parsed->is_object()) fail(key, shown(object_->at(key)), "an object as text");
    Fields inner(*parsed, *package_, where_ + ", " + key);
    inner.owned_ = std::move(parsed);
    return inner;
}

void Fields::expect_text_of(const char* key, const Json& value) const {
    const std::string given = text(key), expected = value.dump();
    if (given == expected) return;
    const auto ends = std::mismatch(given.begin(), given.end(), expected.begin(), expected.end());
    const auto part = [](auto from, auto end) {
        return "\"" + std::string(from, from + std::min<std::ptrdiff_t>(end - from, 40)) + "\"";
    };
    fail(key, "a text with " + part(ends.first, given.end()),
         part(ends.second, expected.end()) +
             " there, as mdcg writes it: the file is damaged or was altered; convert the "
             "checkpoint again");
}

std::vector<Fields> Fields::objects(const char* key) const {
    if (!has(key)) return {};
    const auto& value = object_->at(key);
    if (!value.is_array()) fail(key, shown(value), "a list of objects");
    std::vector<Fields> found;
    for (std::size_t i = 0; i < value.size(); ++i) {
        found.emplace_back(value[i], *package_,
                           where_ + ", " + key + "[" + std::to_string(i) + "]");
        found.back().owned_ = owned_;
    }
    return found;
}

const Tensor& Fields::tensor(const char* key) const {
    const std::string name = text(key);
    const Tensor* found = package_->find(name);
    if (found == nullptr) fail(key, "\"" + name + "\"", "the name of a tensor of the file");
    return *found;
}

const Tensor& Fields::tensor(const char* key, const std::vector<std::int64_t>& shape,
                             Content content) const {
    const Tensor& found = tensor(key);
    const Json& dtype = package_->manifest()["dtype"];
    const Dtype wanted = content == Content::indices                         ? Dtype::i32
                         : content == Content::weights && dtype == "float32" ? Dtype::f32
                                                                             : Dtype::f64;
    if (found.dtype != wanted)
        fail(key, std::string("a tensor of ") + about(found.dtype).name, about(wanted).name);
    bool same = found.shape.size() == shape.size();
    for (std::size_t i = 0; same && i < shape.size(); ++i)
        same = shape[i] == -1 || shape[i] == found.shape[i];
    if (!same) {
        std::string expected = "[";
        for (std::size_t i = 0; i < shape.size(); ++i)
            expected += (i > 0 ? ", " : "") +
                        (shape[i] == -1 ? std::string("any") : std::to_string(shape[i]));
        fail(key, "a tensor of shape " + found.shape_text(), "shape " + expected + "]");
    }
    return found;
}

template <typename T>
std::vector<T> Fields::read(const Tensor& tensor) const {
    try {
        return tensor.read<T>();
    } catch (const EngineError& error) {
        fail(error.what());
    }
}

template <typename T>
std::vector<T> Fields::values(const char* key, const std::vector<std::int64_t>& shape,
                              Content content) const {
    return read<T>(tensor(key, shape, content));
}

template std::vector<float> Fields::read(const Tensor&) const;
template std::vector<double> Fields::read(const Tensor&) const;

template std::vector<float> Fields::values(const char*, const std::vector<std::int64_t>&,
                                           Content) const;
template std::vector<double> Fields::values(const char*, const std::vector<std::int64_t>&,
                                            Content) const;

std::string hex_text(double value) {
    char text[32];
    const auto end =
        std::to_chars(text, text + sizeof text, std::abs(value), std::chars_format::hex);
    std::string digits(text, end.ptr);  // "1.8p-3"
    const std::size_t exponent = digits.find('p');
    const std::size_t given = digits[1] == '.' ? exponent - 2 : 0;
    std::string zeros(value == 0 ? 1 : 13 - given, '0');
    if (digits[1] != '.') zeros.insert(0, ".");
    digits.insert(exponent, zeros);
    return (std::signbit(value) ? "-0x" : "0x") + digits;
}

double parse_hex(const std::string& text) {
    const bool negative = !text.empty() && text[0] == '-';
    const std::size_t start = negative ? 3 : 2;
    double value = 0;
    const char* end = text.data() + text.size();
    if (text.size() > start && text[start - 2] == '0' && text[start - 1] == 'x') {
        const auto result =
            std::from_chars(text.data() + start, end, value, std::chars_format::hex);
        if (result.ec == std::errc() && result.ptr == end && std::isfinite(value))
            return negative ? -value : value;
    }
    throw std::invalid_argument("\"" + text.substr(0, 40) + "\", expected a number such as " +
                                "\"0x1.8p-3\" (0.1875)");
}

}  // namespace mdcg
