#include "engine/package/budget.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/package/limits.hpp"

namespace mdcg {

namespace {

using Json = nlohmann::json;

constexpr double NODES = 32;          // rows of a block's buffers
constexpr double EDGES = 128;         // edges of a block
constexpr double COPIES = 4;          // copies of a tensor: as read, and for both passes
constexpr double RADIAL_COPIES = 12;  // copies of a tensor of a radial network, in double
constexpr double MATRIX_BYTES = 256;  // bytes of a matrix in addition to its numbers
constexpr double TABLE_ROWS = 512;    // rows of a table
constexpr double PAIR_BYTES = 200;    // bytes of a pair of types in addition to its table

double padded(double n) { return std::max(16.0, n + 15.0); }

const Json* member(const Json* object, const char* key) {
    if (object == nullptr || !object->is_object()) return nullptr;
    const auto found = object->find(key);
    return found == object->end() ? nullptr : &*found;
}

class BudgetSum {
public:
    BudgetSum(const Package& package, const ModelInfo& info, std::size_t item_bytes,
              const std::map<std::string, const Rows*>& values)
        : package_(package),
          types_(info.num_types()),
          item_(static_cast<double>(item_bytes)),
          values_(values) {
        const Json& manifest = package.manifest();
        for (const auto& [name, rows] : values) bytes += 2 * NODES * item_ * rows->width;
        if (const Json* names = member(&manifest, "descriptors"))
            for (const Json& name : *names)
                if (const Rows* rows = value(name)) bytes += NODES * 8.0 * rows->width;
        walk(manifest, false);
    }

    double bytes = 0;
    int tables = 0;  // number of layers that have tables

private:
    const Rows* value(const Json& name) const {
        if (!name.is_string()) return nullptr;
        const auto found = values_.find(name.get_ref<const std::string&>());
        return found == values_.end() ? nullptr : found->second;
    }

    const Tensor* tensor(const Json* name) const {
        return name == nullptr || !name->is_string()
                   ? nullptr
                   : package_.find(name->get_ref<const std::string&>());
    }

    // Every string may name a tensor or a value.
    void walk(const Json& json, bool radial) {
        if (json.is_string()) {
            const auto& text = json.get_ref<const std::string&>();
            if (const Tensor* named = package_.find(text)) add(*named, radial);
            if (const Rows* rows = value(json))
                bytes += COPIES * sizeof(Block) * static_cast<double>(rows->blocks.size());
            return;
        }
        if (!json.is_structured()) return;
        if (json.is_object() && json.contains("radial")) {
            const Json* problem = member(&json, "problem");
            add_radial(json["radial"],
                       problem != nullptr && problem->is_string()
                           ? parsed(problem->get<std::string>())
                           : Json(),
                       json.contains("harmonics"));
        }
        for (const auto& [key, each] : json.items())
            if (key != "problem") walk(each, radial || key == "radial");
    }

    static Json parsed(const std::string& text) {
        if (nests_too_deep(text.data(), text.data() + text.size(), limits::MAX_DEPTH)) return {};
        return Json::parse(text, nullptr, false);
    }

    void add(const Tensor& tensor, bool radial) {
        const auto count = static_cast<double>(tensor.count);
        if (tensor.dtype == Dtype::u8) {
            bytes += COPIES * count;
            return;
        }
        double items = padded(count), matrices = 1;
        const std::size_t n = tensor.shape.size();
        if (n > 1) {
            const auto rows = static_cast<double>(tensor.shape[n - 2]);
            const auto columns = static_cast<double>(tensor.shape[n - 1]);
            matrices = rows * columns > 0 ? count / (rows * columns) : 1;
            items = matrices * (rows * padded(columns) + columns * padded(rows)) / 2;
            // a row per type, in which each block is padded
            if (n == 2 && static_cast<double>(tensor.shape[0]) == types_)
                items = std::max(items, 16 * count);
        }
        bytes += MATRIX_BYTES * matrices + (radial ? RADIAL_COPIES * 8 : COPIES * item_) * items;
    }

    // Weights with the padding of every path, one table, and arrays for the edges of a block.
    // `solid`: the last layer has rows for each degree of the harmonics.
    void add_radial(const Json& radial, const Json& problem, bool solid) {
        const Json *layers = member(&radial, "layers"), *table = member(&radial, "table");
        if (layers == nullptr || !layers->is_array()) return;
        double outputs = 0, units = 0, widths = 0;
        for (const Json& layer : *layers) {
            const Tensor* weight = tensor(member(&layer, "weight"));
            if (weight == nullptr || weight->shape.size() != 2) continue;
            units = padded(static_cast<double>(weight->shape[0]) + 1);
            outputs = static_cast<double>(weight->shape[1]);
            widths += units;
        }
        const Json* irreps = member(&problem, "irreps_in2");
        if (solid && irreps != nullptr && irreps->is_string()) {
            const auto& text = irreps->get_ref<const std::string&>();
            units *= static_cast<double>(1 + std::count(text.begin(), text.end(), '+'));
        }
        const Json* paths = member(&problem, "paths");
        // a path has at least one output
        const double count = paths != nullptr ? static_cast<double>(paths->size()) : 0;
        const double width = padded(outputs) + 15 * std::min(count, outputs);
        const double edge = 8 * (5 * widths + 3 * units + 64);
        bytes += 4 * 8 * width * units + EDGES * (edge + 4 * item_ * width);
        if (table == nullptr || !table->is_object()) return;
        bytes += TABLE_ROWS * (4 * item_ * width + 8 * units + 8 * 4 * 256) + units * edge;
        bytes += PAIR_BYTES * types_ * types_;
        ++tables;
    }

    const Package& package_;
    double types_, item_;
    const std::map<std::string, const Rows*>& values_;
};

}  // namespace

std::string memory_text(double bytes) {
    const char* const units[] = {" kB", " MB", " GB"};
    int unit = 0;
    for (bytes /= 1e3; bytes >= 1000 && unit < 2; ++unit) bytes /= 1e3;
    const auto tenths = static_cast<std::int64_t>(10 * bytes + 0.5);
    return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + units[unit];
}

Budget check_memory(const Package& package, const ModelInfo& info, std::size_t item_bytes,
                    const std::map<std::string, const Rows*>& values) {
    const BudgetSum sum(package, info, item_bytes, values);
    Budget budget;
    budget.asked = sum.bytes;
    budget.limit =
        limits::MEMORY_BASE + limits::MEMORY_PER_BYTE * static_cast<double>(package.file_bytes());
    budget.layer_tables = limits::TABLE_MEMORY * budget.limit / std::max(1, sum.tables);
    if (!(budget.asked <= budget.limit))
        package.fail("asks for up to " + memory_text(budget.asked) +
                     " of memory, and the memory budget of a file of " +
                     memory_text(static_cast<double>(package.file_bytes())) + " is " +
                     memory_text(budget.limit) +
                     ": it is damaged, or mdcg-patch has not written it; convert the checkpoint "
                     "again");
    return budget;
}

}  // namespace mdcg
