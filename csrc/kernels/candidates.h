// The tokens a filter has left, and how to cut them by probability mass without sorting them.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/sampling.h"

namespace caudal {

// A token and a score in one integer: larger means a higher score or, at equal scores, a lower id.
// The one order that everything here uses; a tie never depends on an algorithm's whims.
using CandidateKey = uint64_t;

inline CandidateKey candidate_key(float score, size_t token) {
    // Adding zero turns -0 into +0, which would otherwise be different scores.
    const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
    // IEEE floats order like sign-magnitude integers: flip the sign of positive ones and everything
    // of negative ones. No branch, because signs are unpredictable.
    const uint32_t ordered = bits ^ (0x80000000u | (0u - (bits >> 31)));
    return (CandidateKey{ordered} << 32) | static_cast<uint32_t>(~token);
}

inline float candidate_score(CandidateKey key) {
    const auto ordered = static_cast<uint32_t>(key >> 32);
    return std::bit_cast<float>(ordered ^ (0x80000000u | ((ordered >> 31) - 1u)));
}

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

// Reused from call to call; what they hold between calls has no meaning.
struct CandidateBuffers {
    std::vector<CandidateKey> keys;   // the candidates
    std::vector<CandidateKey> slice;  // those near a cut
    std::vector<float> maxima;
};

// The tokens whose logit is at least `threshold`, in order of their ids, keyed by logit. Reads only
// blocks that have some. A threshold of -inf leaves impossible tokens out all the same. The result
// lies in buffers.keys.
std::span<CandidateKey> collect_above(const ScannedRow& row, float threshold,
                                      CandidateBuffers& buffers);

// The `count` first in key order of the tokens whose logit is at least `threshold`; fewer if there
// are fewer. In no particular order; in buffers.keys, too.
std::span<CandidateKey> collect_largest(const ScannedRow& row, size_t count, float threshold,
                                        CandidateBuffers& buffers);

// Gives candidates of one row their weights.
class CandidateWeights {
  public:
    CandidateWeights(const SamplingKernels& kernels, std::span<const float> logits, Softmax softmax)
        : kernels_(kernels), logits_(logits), softmax_(softmax) {}

    // Calls body(key, weight) for every key, in order.
    template <typename Body>
    void for_each(std::span<const CandidateKey> keys, Body body) const;

    float logit(CandidateKey key) const {
        return logits_[static_cast<size_t>(candidate_token(key))];
    }

    // The logarithm of a candidate's weight.
    double exponent(CandidateKey key) const {
        const float finite = std::min(logit(key), std::numeric_limits<float>::max());
        return (double{finite} - softmax_.maximum) * softmax_.scale;
    }

  private:
    const SamplingKernels& kernels_;
    std::span<const float> logits_;
    Softmax softmax_;
};

// The mass of candidates by intervals of their scores, the highest first. All intervals are equally
// wide and together cover exactly the candidates' scores.
class MassHistogram {
  public:
    // `keys` must not be empty.
    MassHistogram(const CandidateWeights& weights, std::span<const CandidateKey> keys);

    double total() const { return total_; }

    // Whether candidates differ in score, so that narrow() leaves some out.
    bool divides() const { return buckets_per_score_ > 0.0; }

    // Those of `keys`, the candidates it was made of, in whose interval the cumulative mass reaches
    // `target`: the last interval if none. Writes them to `out`, which is as long and may be
    // the same memory. Takes the mass `below` that precedes all, adds what precedes the interval.
    std::span<CandidateKey> narrow(std::span<const CandidateKey> keys, double target, double& below,
                                   std::span<CandidateKey> out) const;

  private:
    static constexpr size_t kBuckets = 512;

    size_t bucket(CandidateKey key) const {
        // Subtraction and multiplication round monotonically: buckets are in key order.
        return static_cast<size_t>(
            static_cast<int32_t>((highest_ - candidate_score(key)) * buckets_per_score_));
    }

    double highest_;
    double buckets_per_score_;  // 0: all candidates are in bucket 0
    double total_;
    std::array<double, kBuckets> masses_{};
    std::array<uint32_t, kBuckets> counts_{};
};

// The cumulative mass of candidates in descending key order, without sorting them: histograms
// narrow a cut down to a few candidates, and only those are sorted.
class MassOrder {
  public:
    // Neither `keys`, which must not be empty, nor `buffers` may change while this lives.
    MassOrder(const CandidateWeights& weights, std::span<const CandidateKey> keys,
              CandidateBuffers& buffers)
        : weights_(weights), keys_(keys), buffers_(buffers), histogram_(weights, keys) {}

    // Mass of all candidates.
    double total() const { return histogram_.total(); }

    struct Cut {
        CandidateKey key;  // the last candidate of the prefix
        double mass;       // of the prefix
    };
    // The shortest prefix whose mass reaches `target`; all candidates if they don't reach it.
    Cut cut(double target) const;

  private:
    const CandidateWeights& weights_;
    std::span<const CandidateKey> keys_;
    CandidateBuffers& buffers_;
    MassHistogram histogram_;
};

// Locally typical sampling (arXiv 2202.00666): the candidates whose surprise is nearest to the
// distribution's entropy, as few as reach `typical_p` of the mass. The start of `keys`,
// overwritten.
std::span<CandidateKey> keep_typical(const CandidateWeights& weights, std::span<CandidateKey> keys,
                                     double typical_p, CandidateBuffers& buffers);

}  // namespace caudal
