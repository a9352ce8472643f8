// Limits of packages. They are far above any model, but low enough that sizes fit their types, and
// that a file of a few bytes cannot take hours or all memory.
#pragma once

#include <cstdint>

namespace mdcg::limits {

constexpr std::int64_t MAX_HEADER_BYTES = 100'000'000;  // what safetensors allows
constexpr int MAX_DEPTH = 64;                           // depth of nested lists and objects in JSON
constexpr int MAX_TYPES = 1000;
constexpr int MAX_ATOMIC_NUMBER = 199;
constexpr double MAX_LENGTH = 1000;        // cutoff, Å
constexpr double LENGTH_TOLERANCE = 1e-6;  // cutoffs of layers beyond the package's, relative
constexpr int MAX_LAYERS = 10'000;         // and values
constexpr int MAX_INPUTS = 100;            // of a system
constexpr std::int64_t MAX_INPUT_VALUES = 1'000'000;  // of an input that is counted
constexpr std::int64_t MAX_INPUT_UNITS = 1 << 16;     // hidden units that tensors depend on
constexpr int MAX_MULTIPLICITY = 1 << 16;             // multiplicity of an irrep
constexpr int MAX_DEGREE = 16;                        // degree of an irrep
constexpr int MAX_HARMONICS_DEGREE = 12;              // degree of spherical harmonics
constexpr int MAX_ROW_ITEMS = 1 << 24;         // of a value, padded to 64 bytes; of all descriptors
constexpr int MAX_PATHS = 10'000;              // paths of a convolution
constexpr std::int64_t MAX_TERMS = 1'000'000;  // see KernelSize; of all layers
// Characters that are generated for one layer, and for all different layers. Compilers take minutes
// and 1 GB for a layer of this size. MACE large has 0.2 and 0.5 million, NequIP XL 0.6 and 0.8.
constexpr std::int64_t MAX_LAYER_TEXT = 4'000'000, MAX_KERNEL_TEXT = 16'000'000;
constexpr std::int64_t BASE_TEXT = 40'000, SYMBOL_TEXT = 500, PRODUCT_TEXT = 150;
constexpr int MAX_CONTRACTION_DEGREE = 4;  // factors of a monomial
constexpr int MAX_RADIAL_LAYERS = 16;
constexpr int MAX_RADIAL_WIDTH = 1 << 20;  // outputs of a layer of a radial network
constexpr int MAX_CHEBYSHEV_ORDER = 4096;
constexpr double MIN_CUTOFF_POWER = 2, MAX_CUTOFF_POWER = 200;
constexpr double MIN_XPLOR_START = 1.0 / 16;  // in units of the cutoff; tables need intervals below
constexpr int MAX_SCREENING_TERMS = 16;       // terms of the repulsion of nuclei
constexpr double MAX_WAVES = 1 << 28;         // of a cell, in a box around the sphere of waves
// Bytes that a model may take besides those that grow with the system: MEMORY_BASE, and
// MEMORY_PER_BYTE for each byte of its file. Radial tables of pairs of types, which grow with the
// types of a system, may take TABLE_MEMORY times as much.
constexpr double MEMORY_BASE = 512e6, MEMORY_PER_BYTE = 64;
constexpr double TABLE_MEMORY = 4;

}  // namespace mdcg::limits
