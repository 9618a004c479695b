#include "kernels/candidates.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

namespace caudal {

namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

// Candidates weighed at once: enough for the vector loop, few enough for the stack.
constexpr size_t kWeighed = 256;
// So few candidates are sorted faster than counted.
constexpr size_t kSorted = 64;

}  // namespace

bool ScannedRow::possible() const {
    return maximum > -std::numeric_limits<float>::infinity();
}

Softmax ScannedRow::softmax(double temperature) const {
    return {std::min(maximum, kLargest), static_cast<float>(1.0 / temperature)};
}

std::span<CandidateKey> collect_above(const ScannedRow& row, float threshold,
                                      CandidateBuffers& buffers) {
    threshold = std::max(threshold, -kLargest);
    if (buffers.keys.size() < row.logits.size()) buffers.keys.resize(row.logits.size());
    CandidateKey* const keys = buffers.keys.data();
    size_t count = 0;
    for (size_t block = 0; block < row.maxima.size(); ++block) {
        if (!(row.maxima[block] >= threshold)) continue;
        const size_t begin = block * kVocabBlock;
        const size_t end = std::min(begin + kVocabBlock, row.logits.size());
        for (size_t token = begin; token < end; ++token) {
            // Written before it is decided on: a branch here would be mispredicted often.
            const float logit = row.logits[token];
            keys[count] = candidate_key(std::min(logit, kLargest), token);
            count += logit >= threshold ? 1 : 0;
        }
    }
    return {keys, count};
}

std::span<CandidateKey> collect_largest(const ScannedRow& row, size_t count, float threshold,
                                        CandidateBuffers& buffers) {
    if (count == 0) return {};
    // `count` blocks have a token at or above the count-th largest block maximum, so the `count`
    // largest tokens are all at or above it.
    if (count <= row.maxima.size()) {
        buffers.maxima.assign(row.maxima.begin(), row.maxima.end());
        const auto bound = buffers.maxima.begin() + static_cast<std::ptrdiff_t>(count - 1);
        std::nth_element(buffers.maxima.begin(), bound, buffers.maxima.end(), std::greater<>());
        threshold = std::max(threshold, *bound);
    }
    const std::span<CandidateKey> keys = collect_above(row, threshold, buffers);
    if (keys.size() <= count) return keys;
    std::nth_element(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(count), keys.end(),
                     std::greater<>());
    return keys.first(count);
}

template <typename Body>
void CandidateWeights::for_each(std::span<const CandidateKey> keys, Body body) const {
    float logits[kWeighed];
    float weights[kWeighed];
    for (size_t begin = 0; begin < keys.size(); begin += kWeighed) {
        const size_t count = std::min(kWeighed, keys.size() - begin);
        for (size_t i = 0; i < count; ++i) logits[i] = logit(keys[begin + i]);
        kernels_.weights({logits, count}, softmax_, {weights, count});
        for (size_t i = 0; i < count; ++i) body(keys[begin + i], weights[i]);
    }
}

MassHistogram::MassHistogram(const CandidateWeights& weights, std::span<const CandidateKey> keys) {
    // Not std::minmax_element: it compares neighbours first, a branch as good as random.
    CandidateKey lowest = keys.front();
    CandidateKey highest = keys.front();
    for (const CandidateKey key : keys) {
        lowest = std::min(lowest, key);
        highest = std::max(highest, key);
    }
    highest_ = candidate_score(highest);
    const double range = highest_ - candidate_score(lowest);
    buckets_per_score_ = range > 0.0 ? (kBuckets - 1) / range : 0.0;
    weights.for_each(keys, [this](CandidateKey key, float weight) {
        const size_t index = bucket(key);
        masses_[index] += weight;
        ++counts_[index];
    });
    total_ = std::accumulate(masses_.begin(), masses_.end(), 0.0);
}

std::span<CandidateKey> MassHistogram::narrow(std::span<const CandidateKey> keys, double target,
                                              double& below, std::span<CandidateKey> out) const {
    // The last bucket that isn't empty takes what rounding leaves over.
    size_t chosen = 0;
    double reached = below;
    for (size_t index = 0; index < kBuckets; ++index) {
        if (counts_[index] == 0) continue;
        chosen = index;
        below = reached;
        reached += masses_[index];
        if (reached >= target) break;
    }
    size_t count = 0;
    for (const CandidateKey key : keys) {
        out[count] = key;
        count += bucket(key) == chosen ? 1 : 0;
    }
    return out.first(count);
}

MassOrder::Cut MassOrder::cut(double target) const {
    if (buffers_.slice.size() < keys_.size()) buffers_.slice.resize(keys_.size());
    double below = 0.0;
    std::span<CandidateKey> slice = histogram_.narrow(keys_, target, below, buffers_.slice);
    while (slice.size() > kSorted) {
        const MassHistogram finer(weights_, slice);
        if (!finer.divides()) break;
        slice = finer.narrow(slice, target, below, slice);
    }
    std::sort(slice.begin(), slice.end(), std::greater<>());
    Cut result{slice.back(), below};
    bool reached = false;
    weights_.for_each(slice, [&](CandidateKey key, float weight) {
        if (reached) return;
        result.mass += weight;
        reached = result.mass >= target;
        if (reached) result.key = key;
    });
    return result;
}

std::span<CandidateKey> keep_typical(const CandidateWeights& weights, std::span<CandidateKey> keys,
                                     double typical_p, CandidateBuffers& buffers) {
    // Surprise is log(mass) - exponent and entropy is log(mass) - mean exponent: their distance
    // needs no logarithm.
    double mass = 0.0;
    double weighted = 0.0;
    weights.for_each(keys, [&](CandidateKey key, float weight) {
        mass += weight;
        weighted += weight * weights.exponent(key);
    });
    const double mean = weighted / mass;
    for (CandidateKey& key : keys) {
        const auto distance = static_cast<float>(std::abs(weights.exponent(key) - mean));
        key = candidate_key(-distance, static_cast<size_t>(candidate_token(key)));
    }
    const MassOrder order(weights, keys, buffers);
    const CandidateKey last = order.cut(typical_p * order.total()).key;
    size_t count = 0;
    for (const CandidateKey key : keys) {
        keys[count] = key;
        count += key >= last ? 1 : 0;
    }
    const std::span<CandidateKey> kept = keys.first(count);
    for (CandidateKey& key : kept) {
        key = candidate_key(std::min(weights.logit(key), kLargest),
                            static_cast<size_t>(candidate_token(key)));
    }
    return kept;
}

}  // namespace caudal
