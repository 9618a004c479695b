// Which experts compute for a token, and how much each of them counts.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/token_ops.h"

namespace caudal {

// Most experts of a token, and most groups that experts are in.
constexpr int64_t kMostExpertsUsed = 64;
constexpr int64_t kMostExpertGroups = 64;

// What a router's logits become before they weigh experts: the softmax over all experts, each
// logit's sigmoid, or the softmax over the chosen ones.
enum class Scoring : uint8_t { Softmax, Sigmoid, SoftmaxOfChosen };

// An expert that a token chose.
struct Choice {
    int32_t expert = 0;
    float weight = 0.0f;
};

// How experts are chosen; what `ExpertsOp` says of it, with its vectors (empty: none).
struct Routing {
    Scoring scoring = Scoring::Softmax;
    int64_t groups = 1;
    int64_t groups_used = 1;
    int64_t best_of_group = 1;
    bool normalise = false;
    float scale = 1.0f;
    std::span<const float> selection_bias;
    std::span<const float> expert_scale;
};

// Chooses as many experts as `choices` holds, the best first and of equals those of lower numbers,
// from a router's logits; scores take the logits' place. Where a logit isn't a number, neither are
// the weights, so that the token fails; the experts are valid all the same.
void route(const TokenKernels& kernels, const Routing& routing, std::span<float> logits,
           std::span<Choice> choices);

}  // namespace caudal
