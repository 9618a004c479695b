#include "kernels/candidates.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

namespace caudal {

namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

// Candidates weighed at once: enough for the vector loop, few enough for the stack.
constexpr size_t kWeighed = 256;
// From here on sorting is as fast as another partition.
constexpr size_t kSorted = 64;

}  // namespace

CandidateKey candidate_key(float score, size_t token) {
    // Adding zero turns -0 into +0, which would otherwise be different scores.
    const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
    // IEEE floats order like sign-magnitude integers.
    const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    return (CandidateKey{ordered} << 32) | static_cast<uint32_t>(~token);
}

bool ScannedRow::possible() const {
    return maximum > -std::numeric_limits<float>::infinity();
}

Softmax ScannedRow::softmax(double temperature) const {
    return {std::min(maximum, kLargest), static_cast<float>(1.0 / temperature)};
}

std::span<CandidateKey> collect_above(const ScannedRow& row, float threshold,
                                      CandidateBuffers& buffers) {
    threshold = std::max(threshold, -kLargest);
    // Grown once, and one larger than the vocabulary: the loop below writes before it decides.
    if (buffers.keys.size() <= row.logits.size()) buffers.keys.resize(row.logits.size() + 1);
    CandidateKey* const keys = buffers.keys.data();
    size_t count = 0;
    for (size_t block = 0; block < row.maxima.size(); ++block) {
        if (!(row.maxima[block] >= threshold)) continue;
        const size_t begin = block * kVocabBlock;
        const size_t end = std::min(begin + kVocabBlock, row.logits.size());
        for (size_t token = begin; token < end; ++token) {
            const float logit = row.logits[token];
            keys[count] = candidate_key(logit, token);
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
void CandidateWeights::for_each_weight(std::span<const CandidateKey> keys, Body body) const {
    float logits[kWeighed];
    float weights[kWeighed];
    for (size_t begin = 0; begin < keys.size(); begin += kWeighed) {
        const size_t count = std::min(kWeighed, keys.size() - begin);
        for (size_t i = 0; i < count; ++i) {
            logits[i] = logits_[static_cast<size_t>(candidate_token(keys[begin + i]))];
        }
        kernels_.weights({logits, count}, softmax_, {weights, count});
        for (size_t i = 0; i < count; ++i) body(begin + i, weights[i]);
    }
}

double CandidateWeights::mass(std::span<const CandidateKey> keys) const {
    double sum = 0.0;
    for_each_weight(keys, [&sum](size_t, float weight) { sum += weight; });
    return sum;
}

CandidateWeights::Prefix CandidateWeights::take_prefix(std::span<CandidateKey> keys,
                                                       double target) const {
    // A quickselect that weighs: halve the range that the target falls into.
    size_t low = 0;  // these are in the prefix, and don't reach the target
    size_t high = keys.size();
    double mass_below = 0.0;
    const auto at = [keys](size_t i) { return keys.begin() + static_cast<std::ptrdiff_t>(i); };
    while (high - low > kSorted) {
        const size_t middle = low + (high - low) / 2;
        std::nth_element(at(low), at(middle), at(high), std::greater<>());
        const double upper = mass(keys.subspan(low, middle - low));
        if (mass_below + upper >= target) {
            high = middle;
        } else {
            low = middle;
            mass_below += upper;
        }
    }
    std::sort(at(low), at(high), std::greater<>());
    Prefix prefix{0, mass_below};
    for_each_weight(keys.subspan(low, high - low), [&](size_t i, float weight) {
        if (prefix.count != 0) return;
        prefix.mass += weight;
        if (prefix.mass >= target) prefix.count = low + i + 1;
    });
    if (prefix.count == 0) prefix.count = high;
    return prefix;
}

std::span<CandidateKey> CandidateWeights::keep_typical(std::span<CandidateKey> keys,
                                                       double typical_p) const {
    const auto exponent = [this](CandidateKey key) {
        const float logit = logits_[static_cast<size_t>(candidate_token(key))];
        return (double{std::min(logit, kLargest)} - softmax_.maximum) * softmax_.scale;
    };
    // Surprise is log(mass) - exponent and entropy is log(mass) - mean exponent: their distance
    // needs no logarithm.
    double mass = 0.0;
    double weighted = 0.0;
    for_each_weight(keys, [&](size_t i, float weight) {
        mass += weight;
        weighted += weight * exponent(keys[i]);
    });
    const double mean = weighted / mass;
    for (CandidateKey& key : keys) {
        const auto distance = static_cast<float>(std::abs(exponent(key) - mean));
        key = candidate_key(-distance, static_cast<size_t>(candidate_token(key)));
    }
    const std::span<CandidateKey> kept = keys.first(take_prefix(keys, typical_p * mass).count);
    for (CandidateKey& key : kept) {
        const auto token = static_cast<size_t>(candidate_token(key));
        key = candidate_key(logits_[token], token);
    }
    return kept;
}

}  // namespace caudal
