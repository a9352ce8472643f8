// Typed, checked access to one JSON object of the manifest; errors name layer, field, what was got
// and what was expected.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/package/package.hpp"

namespace mdcg {

// What a tensor holds: weights have the dtype of the package, constants are float64 in all
// packages, and indices are int32.
enum class Content { weights, constants, indices };

class Fields {
public:
    // `where` names the object in errors: "layer 3 (linear)".
    Fields(const nlohmann::json& object, const Package& package, std::string where);

    const std::string& where() const { return where_; }
    const Package& package() const { return *package_; }
    bool has(const char* key) const;      // there and not null
    bool is_text(const char* key) const;  // a string: the name of a tensor or of a value

    double number(const char* key) const;  // finite
    double number(const char* key, double otherwise) const;
    std::int64_t integer(const char* key, std::int64_t min, std::int64_t max) const;
    std::string text(const char* key) const;
    std::string text(const char* key, const std::string& otherwise) const;
    std::vector<std::string> texts(const char* key) const;
    std::vector<double> numbers(const char* key) const;
    Fields object(const char* key) const;
    Fields object_in_text(const char* key) const;  // parses a string that contains a JSON object
    // Throws unless the string is exactly the text that mdcg writes for `value`: without spaces and
    // with sorted keys. Python generates kernels from this text, so it must not contain more than
    // `value`, which the engine has checked.
    void expect_text_of(const char* key, const nlohmann::json& value) const;
    std::vector<Fields> objects(const char* key) const;  // empty where absent
    const nlohmann::json& json(const char* key) const;   // value of any type

    // The tensor that the field names, of the given shape; -1: any size.
    const Tensor& tensor(const char* key) const;
    const Tensor& tensor(const char* key, const std::vector<std::int64_t>& shape,
                         Content content = Content::weights) const;
    // Numbers of a tensor as T (float or double); throws unless all are finite.
    template <typename T>
    std::vector<T> read(const Tensor& tensor) const;
    template <typename T>
    std::vector<T> values(const char* key, const std::vector<std::int64_t>& shape,
                          Content content = Content::weights) const;

    // "PATH: layer 3 (linear): field `key` is GOT, expected EXPECTED"
    [[noreturn]] void fail(const char* key, const std::string& got,
                           const std::string& expected) const;
    // "PATH: layer 3 (linear): SENTENCE"
    [[noreturn]] void fail(const std::string& sentence) const;

private:
    const nlohmann::json& at(const char* key, const char* expected) const;

    const nlohmann::json* object_;
    const Package* package_;
    std::string where_;
    std::shared_ptr<const nlohmann::json> owned_;
};

// Reads a number such as "0x1.8p-3"; throws std::invalid_argument.
double parse_hex(const std::string& text);
// The text of Python's float.hex(): "0x1.8000000000000p-3".
std::string hex_text(double value);

}  // namespace mdcg
