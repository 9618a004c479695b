// Layers that remember a sequence in a state of fixed size instead of keys and values: what happens
// to the tokens of one sequence, one after the other.
//
// Tokens go one by one, and every number of a state or of a result is computed by a fixed order of
// operations: the bits depend neither on how a sequence is cut into batches nor on the width of
// vectors. All states are float32. A state is read from `source` and left in `destination`, which
// may be the same.
#pragma once

#include <cstdint>

#include "kernels/token_ops.h"

namespace caudal {

// Channels whose states lie side by side: matrices of states are [panel][row][kStatePanel].
constexpr int64_t kStatePanel = 16;

// A row of floats for each token.
template <class Float>
struct TokenRows {
    Float* first = nullptr;
    int64_t stride = 0;

    Float* at(int64_t token) const { return first + token * stride; }
    TokenRows from(int64_t channel) const { return {first + channel, stride}; }
};

// A depthwise convolution: out = activation(bias + Σ taps[j] · the input j + 1 - count tokens ago).
struct ConvolutionTokens {
    int64_t tokens = 0;
    TokenRows<const float> x;
    TokenRows<float> out;
    const float* taps = nullptr;  // [count][channels], that of the oldest input first
    const float* bias = nullptr;  // [channels]; null: none
    int64_t count = 0;            // of taps
    int64_t channels = 0;
    Activation activation = Activation::None;
    const float* source = nullptr;  // the last inputs, oldest first: [count - 1][channels]
    float* destination = nullptr;   // the same
};

// Value channels of one head of a gated delta net (arXiv 2412.06464). For each token, with the
// state S [key][value]:  S = decay · S;  S += k ⊗ (v - Sᵀk) · beta;  out = scale · Sᵀq.
struct DeltaTokens {
    int64_t tokens = 0;
    int64_t key_dim = 0;
    int64_t panels = 0;  // of values
    float scale = 1.0f;
    TokenRows<const float> q;       // [key_dim]
    TokenRows<const float> k;       // [key_dim]
    TokenRows<const float> v;       // [panels · kStatePanel]
    TokenRows<const float> decay;   // [1]
    TokenRows<const float> beta;    // [1]
    TokenRows<float> out;           // [panels · kStatePanel]
    const float* source = nullptr;  // [panel][key_dim][kStatePanel]
    float* destination = nullptr;   // the same
};

// Channels of one head of Mamba-2 (arXiv 2405.21060). For each token, with the state h
// [n][channel]: h = decay · h + b ⊗ (dt · x);  out = hᵀc + skip · x.
struct SelectiveTokens {
    int64_t tokens = 0;
    int64_t state_dim = 0;
    int64_t panels = 0;  // of channels
    float skip = 0.0f;
    TokenRows<const float> x;       // [panels · kStatePanel]
    TokenRows<const float> b;       // [state_dim]
    TokenRows<const float> c;       // [state_dim]
    TokenRows<const float> dt;      // [1]
    TokenRows<const float> decay;   // [1]
    TokenRows<float> out;           // [panels · kStatePanel]
    const float* source = nullptr;  // [panel][state_dim][kStatePanel]
    float* destination = nullptr;   // the same
};

struct RecurrentKernels {
    // Channels [begin, end) of a convolution.
    void (*convolve)(const ConvolutionTokens& tokens, int64_t begin, int64_t end);
    void (*gated_delta)(const DeltaTokens& tokens);
    void (*selective_scan)(const SelectiveTokens& tokens);
};

}  // namespace caudal
