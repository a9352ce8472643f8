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
    double layer_tables = 0;      // that a radial table of one layer may take
};

// Adds up what a model makes of the tensors and values that the manifest names, each as often as it
// is named: weights with padding and copies, one radial table of each layer (on GPUs there is a
// second one, of values), and the buffers of one block of nodes. Numbers of `item_bytes`; `values`:
// those of the manifest. Throws EngineError (ErrorKind::file) where that is more than limits.hpp
// allows for a file of this size.
Budget check_memory(const Package& package, const ModelInfo& info, std::size_t item_bytes,
                    const std::map<std::string, const Rows*>& values);

std::string memory_text(double bytes);  // "2.5 GB"

}  // namespace mdcg
