// Types of layers by name: what builds them from the manifest.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "engine/fields.hpp"
#include "engine/layer.hpp"

namespace mdcg {

// One entry of "layers", with the values that it may name.
class LayerSpec {
public:
    virtual ~LayerSpec() = default;
    Fields fields;
    const ModelInfo& info;
    int index;         // of the layer, in order
    std::string type;  // "linear"

    // The value that a field names.
    virtual Operand operand(const Fields& fields, const char* key) const = 0;
    virtual std::vector<Operand> operands(const Fields& fields, const char* key) const = 0;
    Operand operand(const char* key) const { return operand(fields, key); }

protected:
    LayerSpec(Fields f, const ModelInfo& i, int n, std::string t)
        : fields(std::move(f)), info(i), index(n), type(std::move(t)) {}
};

template <typename T>
using LayerFactory = std::unique_ptr<Layer<T>> (*)(const LayerSpec&);

// What builds layers of each type, in both precisions.
class LayerTypes {
public:
    void add(const std::string& type, LayerFactory<float> f32, LayerFactory<double> f64) {
        factories_[type] = {f32, f64};
    }
    // Null: no such type.
    template <typename T>
    LayerFactory<T> find(const std::string& type) const {
        const auto found = factories_.find(type);
        return found == factories_.end() ? nullptr : std::get<LayerFactory<T>>(found->second);
    }
    std::vector<std::string> names() const {
        std::vector<std::string> all;
        for (const auto& entry : factories_) all.push_back(entry.first);
        return all;
    }

private:
    std::map<std::string, std::tuple<LayerFactory<float>, LayerFactory<double>>> factories_;
};

// At namespace scope of a layer's source:
//   const RegisterLayer registered{"linear", &make_linear<float>, &make_linear<double>};
struct RegisterLayer {
    RegisterLayer(const char* type, LayerFactory<float> f32, LayerFactory<double> f64);
};

// Null: no such type.
template <typename T>
LayerFactory<T> find_layer(const std::string& type);
std::vector<std::string> layer_types();

}  // namespace mdcg
