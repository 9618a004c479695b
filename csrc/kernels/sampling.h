// The passes of sampling that read a whole row of logits: what of it depends on the instruction
// set. The choice itself, which looks at few tokens, is in sampler.h.
//
// A row is read in blocks. A block's largest logit tells the sampler which blocks it can skip, and
// a block's mass tells it in which one an inverse-CDF draw ends; so the vocabulary is read once or
// twice and never sorted.
//
// Every instruction set gives the same bits: the operations, their order and the lanes are the
// same, and no multiply-add is fused. Equal logits and an equal seed thus give equal tokens
// everywhere.
#pragma once

#include <cstddef>
#include <span>

namespace caudal {

constexpr size_t kVocabBlock = 128;

constexpr size_t vocab_blocks(size_t vocab) {
    return (vocab + kVocabBlock - 1) / kVocabBlock;
}

// weight(logit) = e^((min(logit, largest float) - maximum) · scale): a softmax without its
// denominator. The clamp makes +inf a very large logit, so that several of them share the mass.
// NaN, -inf and exponents below -87 weigh exactly 0; the maximum weighs exactly 1. Relative error
// of the exponential below 1e-7.
struct Softmax {
    float maximum = 0.0f;  // finite; no logit of the row is larger, but for +inf
    float scale = 1.0f;    // 1 / temperature
};

struct SamplingKernels {
    // maxima[b] = largest logit of block b, not counting NaN; -inf if it has none.
    // `maxima` holds vocab_blocks(logits.size()) floats.
    void (*block_maxima)(std::span<const float> logits, std::span<float> maxima);

    // masses[b] = sum of the weights of block b. Blocks whose maximum weighs nothing aren't read.
    // `maxima` and `masses` hold vocab_blocks(logits.size()) floats.
    void (*block_masses)(std::span<const float> logits, std::span<const float> maxima,
                         Softmax softmax, std::span<float> masses);

    // weights[i] = weight(logits[i]); both of one length.
    void (*weights)(std::span<const float> logits, Softmax softmax, std::span<float> weights);

    // out[i] = logits[i] where bit i % 8 of byte i / 8 of `allowed` is set, else -inf; and maxima
    // of `out` as block_maxima has them. Bits past the mask's end count as unset, bits past the
    // row's end are ignored. Blocks without a set bit aren't read.
    void (*masked_maxima)(std::span<const float> logits, std::span<const std::byte> allowed,
                          std::span<float> out, std::span<float> maxima);
};

}  // namespace caudal
