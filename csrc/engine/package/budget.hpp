// How much memory a package asks for, before any of it is allocated.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "engine/package/package.hpp"
#include "engine/rows.hpp"

namespace mdcg {

struct Budget {
    double asked = 0, limit = 0;  // bytes
    double layer_tables = 0;      // bytes that the radial tables of one layer may take
};

// Adds up the memory that a model needs for the tensors and values that the manifest names, each as
// often as it is named: weights with padding and copies, one radial table per layer (on GPUs there
// is a second one, of values), and the buffers of one block of nodes. A number takes `item_bytes`.
// `values`: rows of the values of the manifest. Throws EngineError (ErrorKind::file) if the sum is
// more than limits.hpp allows for a file of this size.
Budget check_memory(const Package& package, const ModelInfo& info, std::size_t item_bytes,
                    const std::map<std::string, const Rows*>& values);

std::string memory_text(double bytes);  // "2.5 GB"

}  // namespace mdcg
