// The tokens a filter has left, and how to cut them by probability mass without sorting them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/sampling.h"

namespace caudal {

// A token and a score in one integer: larger means a higher score or, at equal scores, a lower id.
// The one order that everything here uses; a tie never depends on an algorithm's whims.
using CandidateKey = uint64_t;

CandidateKey candidate_key(float score, size_t token);

constexpr int32_t candidate_token(CandidateKey key) {
    return static_cast<int32_t>(~static_cast<uint32_t>(key));
}

// A row of logits with what one pass over it told.
struct ScannedRow {
    std::span<const float> logits;
    std::span<const float> maxima;  // of its blocks
    float maximum = 0.0f;           // NaN aside; -inf if no token is possible, maybe +inf

    bool possible() const;
    Softmax softmax(double temperature) const;
};

// The passes and buffers that the functions below need.
struct CandidateBuffers {
    std::vector<CandidateKey> keys;
    std::vector<float> maxima;
};

// The tokens whose logit is at least `threshold`, in order of their ids, keyed by logit. Reads only
// blocks that have some. A threshold of -inf leaves impossible tokens out all the same. The result
// lies in buffers.keys.
std::span<CandidateKey> collect_above(const ScannedRow& row, float threshold,
                                      CandidateBuffers& buffers);

// The `count` first in key order of the tokens whose logit is at least `threshold`; fewer if there
// are fewer. In no particular order.
std::span<CandidateKey> collect_largest(const ScannedRow& row, size_t count, float threshold,
                                        CandidateBuffers& buffers);

// Weighs candidates of one row.
class CandidateWeights {
  public:
    CandidateWeights(const SamplingKernels& kernels, std::span<const float> logits, Softmax softmax)
        : kernels_(kernels), logits_(logits), softmax_(softmax) {}

    double mass(std::span<const CandidateKey> keys) const;

    // The smallest number of candidates whose mass, in descending key order, reaches `target`, and
    // their mass; all of them if they don't reach it. Moves those to the front of `keys`, the last
    // of them (in key order) at the end of the prefix. `keys` must not be empty. Linear time.
    struct Prefix {
        size_t count;
        double mass;
    };
    Prefix take_prefix(std::span<CandidateKey> keys, double target) const;

    // Locally typical sampling (arXiv 2202.00666): the candidates whose surprise is nearest to the
    // distribution's entropy, as few as reach `typical_p` of the mass. Keyed by logit again.
    std::span<CandidateKey> keep_typical(std::span<CandidateKey> keys, double typical_p) const;

  private:
    // Calls body(index of a key, its weight) in order.
    template <typename Body>
    void for_each_weight(std::span<const CandidateKey> keys, Body body) const;

    const SamplingKernels& kernels_;
    std::span<const float> logits_;
    Softmax softmax_;
};

}  // namespace caudal
