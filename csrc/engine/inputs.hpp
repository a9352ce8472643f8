// Inputs of a system besides its atoms, such as its total charge, and the tensors that depend on
// them (FORMAT.md, "Inputs").
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/cpu/simd.hpp"
#include "engine/package/fields.hpp"
#include "engine/package/package.hpp"

namespace mdcg {

// A package whose tensors follow the values of the inputs. At first they are those of the file,
// which belong to the defaults.
class InputTensors {
public:
    InputTensors(std::shared_ptr<const Package> package, const ModelInfo& info);

    // Operations read their tensors here. The same package if no tensor depends on inputs.
    const std::shared_ptr<const Package>& package() const { return package_; }
    const std::shared_ptr<const Package>& file() const { return file_; }  // with its own tensors
    std::vector<std::string> names() const;  // of the tensors that depend on inputs
    // The values of the tensors, [num_inputs]; NaN: not set, and without a default.
    const double* values() const { return values_.data(); }

    // Returns the values of all inputs. `given`: [num_inputs], NaN: the default; null: all
    // defaults. Throws EngineError for a missing value, and for one that the model cannot take.
    std::vector<double> complete(const double* given) const;
    // Takes such values, and returns whether they differ from the last. Throws EngineError, without
    // a change, if a tensor would not be finite.
    bool set(std::vector<double> values);

private:
    struct Layer {
        std::size_t in = 0, out = 0;
        std::vector<double> weight, bias;  // [in][out], [out] or empty
        Activation activation = Activation::none;
        double factor = 1;
    };
    // What an input adds to the hidden units: a row of its value, or the result of layers.
    struct Embedding {
        std::vector<double> rows;  // [count][units] or empty
        std::vector<Layer> layers;
    };
    struct DependentTensor {
        const Tensor* tensor = nullptr;   // as it is in the file
        std::vector<double> factors;      // [units][items]
        std::size_t items = 0;            // of the tensor, or of each of its types
        std::vector<unsigned char> data;  // the current numbers, in the type of the tensor
    };

    void read(const Fields& manifest, const ModelInfo& info);
    Layer read_layer(const Fields& fields, std::int64_t in, bool last) const;
    std::vector<double> hidden(const std::vector<double>& values) const;
    template <typename T>
    void fill(const DependentTensor& from, const std::vector<double>& change,
              std::vector<unsigned char>& to) const;

    std::shared_ptr<const Package> file_, package_;
    std::vector<Input> inputs_;
    std::vector<Embedding> embeddings_;  // [num_inputs]
    std::int64_t units_ = 0;
    Activation activation_ = Activation::none;
    double factor_ = 1;
    std::map<std::string, DependentTensor> dependent_;
    std::vector<double> values_, defaults_;
    std::vector<double> hidden_of_file_;  // hidden units that its tensors belong to
};

}  // namespace mdcg
