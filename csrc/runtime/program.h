// A model as the runtime sees it: operations over named buffers (see src/caudal/models/program).
//
// A buffer is a matrix with one row per token of the batch; operations refer to buffers, matrices
// and vectors by index.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kv_pool.h"
#include "runtime/ops.h"

namespace caudal {

// Angles of position p: p · inverse_frequencies[i]; cosines and sines are multiplied by `magnitude`
// (YaRN's attention factor).
struct RopeTable {
    std::vector<float> inverse_frequencies;
    float magnitude;
    bool interleaved;
};

struct Program {
    std::vector<int64_t> buffer_widths;
    std::vector<RopeTable> rope_tables;
    std::vector<KVGeometry> kv_layers;
    std::vector<int64_t> state_layers;  // floats of each one's state
    std::vector<Op> body;      // every token of the batch; ends with its result in `carried`
    std::vector<Op> tail;      // only tokens for head or states: from `carried` to `hidden`
    std::vector<Op> head;      // only tokens that have outputs: from `hidden` to `logits`
    std::vector<Op> states;    // only tokens that are pooled: from `hidden` to `state`
    std::vector<int> carried;  // buffers
    int hidden = 0;
    int logits = -1;  // -1: an encoder, which has none
    int state = 0;
};

}  // namespace caudal
