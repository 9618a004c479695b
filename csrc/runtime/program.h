// A model as the runtime sees it: operations over named buffers (see src/caudal/models/program.py,
// which this mirrors one to one).
//
// A buffer is a matrix with one row per token of the batch; operations refer to buffers, matrices
// and vectors by index.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "kernels/token_ops.h"
#include "runtime/kv_pool.h"

namespace caudal {

// What chooses a token's row of an embedding: its id, its position, or which of a pair's texts it
// belongs to (0 or 1).
enum class EmbedBy : uint8_t { Token, Position, Segment };

// out = scale · row of `matrix` for each token
struct EmbedOp {
    int out;
    int matrix;
    float scale;
    EmbedBy by = EmbedBy::Token;
};

// Normalises each group of vector(weight).size() channels of x.
struct RmsNormOp {
    int out;
    int x;
    int weight;
    float eps;
};

// LayerNorm over the whole row.
struct LayerNormOp {
    int out;
    int x;
    int weight;
    int bias;
    float eps;
};

// out = matrix · x (+ bias); with `accumulate`, out += …
struct LinearOp {
    int out;
    int x;
    int matrix;
    int bias;  // -1: none
    bool accumulate;
};

// Rotates all heads of x in place by the angles of rope table `table`.
struct RopeOp {
    int x;
    int head_dim;
    int table;
};

// Stores k and v in the pool and attends over everything the sequence has stored so far.
struct AttentionOp {
    int out;
    int q;
    int k;
    int v;
    int layer;
    AttentionShape shape;
};

// out = activation(gate) · up
struct GatedOp {
    int out;
    int gate;
    int up;
    Activation activation;
};

// x = activation(x)
struct ActivateOp {
    int x;
    Activation activation;
};

// out = a + b
struct AddOp {
    int out;
    int a;
    int b;
};

// x = cap · tanh(x / cap)
struct SoftcapOp {
    int x;
    float cap;
};

using Op = std::variant<EmbedOp, RmsNormOp, LayerNormOp, LinearOp, RopeOp, AttentionOp, GatedOp,
                        ActivateOp, AddOp, SoftcapOp>;

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
    std::vector<Op> body;      // every token of the batch; ends with its result in `carried`
    std::vector<Op> tail;      // only tokens for head or states: from `carried` to `hidden`
    std::vector<Op> head;      // only tokens whose logits are wanted: from `hidden` to `logits`
    std::vector<Op> states;    // only tokens that are pooled: from `hidden` to `state`
    std::vector<int> carried;  // buffers
    int hidden = 0;
    int logits = -1;  // -1: an encoder, which has none
    int state = 0;
};

}  // namespace caudal
