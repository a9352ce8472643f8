// The radial network: from the length of an edge to the hidden activations that the last linear
// layer turns into weights.
//
// In the manifest:
//   "r_max": number, or tensor [T, T] by type of receiver and sender, Å
//   "transform": null, or {"kind": "agnesi", "a", "q", "p", "r_0": tensor [T, T]}
//                      or {"kind": "soft", "alpha", "r_0": tensor [T, T]}
//   "basis": {"kind": "bessel", "weights": tensor [n], "prefactor"}   prefactor sin(weight t) / t
//            {"kind": "gaussian", "centers": tensor [n], "coefficient"}
//                                                        exp(coefficient (t - center)^2)
//            {"kind": "chebyshev", "order": n}           T_1(t) .. T_n(t)
//            and "argument": "length" (t = r, or the transformed r) or "normalized" (t = r / r_max)
//   "cutoff": null or {"kind": "polynomial", "p"} or {"kind": "xplor", "start"};
//   "cutoff_on": "basis" | "weights"
//   "layers": [{"weight": [in, out], "bias": [out], "layer_norm": {"weight", "bias", "epsilon"},
//               "activation", "factor"}, ...]; the last one has neither norm nor activation
//   "sender", "receiver": tensor [T, hidden] or value, added before the first norm and activation
//   "table": null (CPUs evaluate the network) or an object (CPUs evaluate a table: see
//            radial_table.hpp); the object's fields in older packages are not read
// An edge of length r_max or more gives zeros, also where layers have biases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/backend/cpu/edge_kernels.hpp"
#include "engine/backend/cpu/simd.hpp"
#include "engine/package/fields.hpp"
#include "engine/package/limits.hpp"

namespace mdcg {

// The radial network of the manifest, in double.
struct RadialSpec {
    struct Layer {
        int in = 0, out = 0;
        std::vector<double> weight;  // [in][out]
        std::vector<double> bias;    // [out] or empty
        std::vector<double> norm_weight, norm_bias;
        double epsilon = 0;
        Activation activation = Activation::none;
        double factor = 1;
    };

    int num_types = 0;
    BasisFunctions functions;  // `values` is set where it is used, to basis_values
    std::vector<double> basis_values;
    std::vector<double> r_max;  // [1] or [T][T]
    std::vector<double> r_0;    // [T][T] or empty
    std::vector<Layer> layers;
    // Powers of the length that multiply weights, ascending; empty: none does. The last layer then
    // has [powers][in] rows, for its inputs times each power.
    std::vector<int> powers;
    std::vector<double> sender_table, receiver_table;  // [T][hidden] or empty
    std::string sender_value, receiver_value;          // names of values, or empty
    bool exact = false;      // CPUs evaluate the network; tables of GPUs have the tightest limit
    double table_bytes = 0;  // limit for the tables of all pairs

    // `outputs`: number of columns that the last layer must have. `powers` [outputs]: each weight
    // is multiplied by this power of the length; empty: none is.
    static RadialSpec read(const Fields& fields, const ModelInfo& info, int outputs,
                           const std::vector<int>& powers = {});
    // The number of columns that the last layer has.
    static int outputs(const Fields& fields);

    double pair_r_max(int receiver, int sender) const {
        return r_max.size() == 1 ? r_max[0] : r_max[pair(receiver, sender)];
    }
    double pair_r_0(int receiver, int sender) const {
        return r_0.empty() ? 0.0 : r_0[pair(receiver, sender)];
    }
    // Whether weights are functions of the length and the types alone, and smooth enough for a
    // table.
    bool has_table() const;
    // Throws if weights of the first type are not finite. Checks only networks without rows of
    // nodes.
    void check_finite(const Fields& fields) const;
    // Whether weights stay the same if sender and receiver are exchanged.
    bool symmetric() const;
    // Whether, at the same length and receiver, weights depend on the type of the sender.
    bool depends_on_sender() const;
    // The number of rows of the last layer, with a constant 1 if it has a bias.
    int units() const {
        const int copies = powers.empty() ? 1 : static_cast<int>(powers.size());
        return layers.back().in * copies + (layers.back().bias.empty() ? 0 : 1);
    }
    // The last layer with its bias as the last row, [units()][outputs].
    std::vector<double> last() const;

private:
    void multiply_by_powers(const std::vector<int>& of_outputs);
    std::size_t pair(int receiver, int sender) const {
        return static_cast<std::size_t>(receiver) * static_cast<std::size_t>(num_types) +
               static_cast<std::size_t>(sender);
    }
};

// Reads the field "r_max": one number, or [T][T], not beyond the cutoff of the package.
std::vector<double> read_cutoffs(const Fields& fields, const ModelInfo& info);
// Throws what Fields::fail does if the power `p` is out of range.
void check_cutoff_power(const Fields& fields, double p);

// A block of edges.
struct RadialEdges {
    std::int64_t count;
    std::int64_t capacity;              // size of the arrays, a multiple of 16
    const double* length;               // [capacity] Å; r_max or more beyond the last edge
    const std::int32_t* sender_type;    // [count]
    const std::int32_t* receiver_type;  // [count]
};

// Rows of nodes that are added to the first layer's preactivations.
template <typename T>
struct RadialRows {
    const std::int32_t* node = nullptr;  // [count] node of each edge
    const T* values = nullptr;           // [num_nodes][width]; null: none
    T* gradient = nullptr;               // [num_nodes][width], added to; null: none
    std::int64_t width = 0;
};

template <typename T>
class Radial {
public:
    explicit Radial(const RadialSpec& spec);

    int units() const { return units_; }
    std::int64_t hidden_stride() const { return hidden_stride_; }
    // Padded width of the first layer's preactivations, and of RadialRows.
    std::int64_t first_stride() const { return layers_.empty() ? 0 : layers_[0].stride; }

    std::size_t work_bytes(std::int64_t capacity) const;

    // Writes all of hidden [capacity][hidden_stride]. `work` has work_bytes(); with `keep`, it
    // holds what backward() needs.
    void forward(const RadialEdges& edges, const RadialRows<T>& sender,
                 const RadialRows<T>& receiver, char* work, T* hidden, bool keep = true) const;
    // To be called after forward() with the same edges and work. Overwrites the gradients d_hidden
    // [capacity][hidden_stride], and adds to d_length [capacity].
    void backward(const RadialEdges& edges, const RadialRows<T>& sender,
                  const RadialRows<T>& receiver, char* work, T* d_hidden, double* d_length) const;
    // To be called after forward() with the same edges and work. Writes the derivatives of hidden
    // by the length, [capacity][hidden_stride].
    void derivative(const RadialEdges& edges, char* work, T* slopes) const;

private:
    struct Layer {
        int in, out;
        std::int64_t stride;  // out, padded
        PackedMatrix<T> weight, weight_t;
        AlignedArray<T> bias;  // [stride], zeros where there is none
        bool norm;
        AlignedArray<T> norm_weight, norm_bias, ones;
        T epsilon;
        Activation activation;
        T factor;
    };
    struct LayerMemory {
        T *value, *slope, *normalised;  // [capacity][stride of the layer]
        T* scale;                       // [capacity]
    };
    static constexpr int MAX_LAYERS = limits::MAX_RADIAL_LAYERS;
    struct Memory {
        double *r_max, *r_0, *cutoff, *cutoff_slope;  // [capacity]
        T *basis, *basis_slope;                       // [capacity][basis_stride]
        T *first, *second;                            // [capacity][widest], gradients of layers
        LayerMemory layers[MAX_LAYERS];
        std::size_t bytes;
    };
    Memory lay_out(std::int64_t capacity, char* work) const;
    double fold_powers(double length, const T* last, T* d) const;

    RadialSpec spec_;
    std::vector<Layer> layers_;                      // all but the last
    AlignedArray<T> sender_table_, receiver_table_;  // [T][first_stride]
    int units_, last_in_;
    bool constant_unit_;  // whether the last layer has a bias
    std::int64_t basis_stride_, hidden_stride_, widest_;
};

}  // namespace mdcg
