#include "engine/cuda/layers/node_layer.hpp"

namespace mdcg {

const char* node_text() {
    return
#include "engine/cuda/text/activation.cuh"
#include "engine/cuda/text/exchange.cuh"
#include "engine/cuda/text/gate.cuh"
#include "engine/cuda/text/nodes.cuh"
        ;
}

}  // namespace mdcg
