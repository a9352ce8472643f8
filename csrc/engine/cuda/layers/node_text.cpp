#include "engine/cuda/layers/node_layer.hpp"

namespace mdcg {

const char* node_text() {
    return
#include "engine/cuda/text/activation.cuh"
#include "engine/cuda/text/gate.cuh"
#include "engine/cuda/text/nodes.cuh"
#include "engine/cuda/text/rows.cuh"
        ;
}

}  // namespace mdcg
