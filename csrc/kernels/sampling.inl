#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

#include "kernels/sampling.h"
#include "kernels/vec.inl"

namespace caudal::CAUDAL_ISA {

// weight() of sampling.h. Not vec.inl's exponential: that one fuses where the instruction set can,
// and its last bit would then depend on the machine.
CAUDAL_INLINE f32x8 weight(f32x8 logit, Softmax softmax) {
    // The logit comes second: where it is NaN, the comparison fails and it stays NaN.
    const f32x8 finite = minimum(splat(std::numeric_limits<float>::max()), logit);
    const f32x8 exponent = (finite - softmax.maximum) * softmax.scale;
    const i32x8 counts = exponent >= splat(-87.0f);  // false for NaN, too
    const f32x8 x = (f32x8)((i32x8)exponent & counts);
    // Adding and subtracting 1.5 · 2^23 rounds to the nearest integer: x = n · ln 2 + r. The first
    // part of ln 2 has so few bits that its product with n is exact.
    const f32x8 magic = splat(12582912.0f);
    const f32x8 rounded = x * 1.44269504f + magic;
    const f32x8 n = rounded - magic;
    const f32x8 r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    // Minimax polynomial for (e^r - 1 - r) / r² on [-ln 2 / 2, ln 2 / 2]: relative error 3e-9.
    f32x8 p = splat(0x1.6a2352p-10f);
    p = p * r + 0x1.123a6cp-7f;
    p = p * r + 0x1.5558f4p-5f;
    p = p * r + 0x1.555490p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = (p * r) * r + r + 1.0f;
    const i32x8 power = ((i32x8)rounded - (i32x8)magic) << 23;  // 2^n: n added to the exponent
    return (f32x8)(((i32x8)p + power) & counts);
}

// Calls body(block index, pointer to kVocabBlock logits) for every block; the last is filled up
// with -inf, which neither maxima nor masses notice.
template <typename Body>
CAUDAL_INLINE void for_each_block(std::span<const float> logits, Body body) {
    const size_t whole = logits.size() / kVocabBlock;
    for (size_t block = 0; block < whole; ++block) body(block, logits.data() + block * kVocabBlock);
    const size_t rest = logits.size() % kVocabBlock;
    if (rest == 0) return;
    float padded[kVocabBlock];
    for (size_t i = 0; i < kVocabBlock; ++i) {
        padded[i] = i < rest ? logits.data()[whole * kVocabBlock + i] : kMinusInfinity;
    }
    body(whole, padded);
}

CAUDAL_INLINE float block_maximum(const float* from) {
    f32x8 best[2] = {splat(kMinusInfinity), splat(kMinusInfinity)};
    for (size_t i = 0; i < kVocabBlock; i += 2 * kLanes) {
        // `best` comes second: where the logit is NaN, the comparison fails and it stays.
        best[0] = maximum(load(from + i), best[0]);
        best[1] = maximum(load(from + i + kLanes), best[1]);
    }
    return max_lanes(maximum(best[0], best[1]));
}

static void block_maxima(std::span<const float> logits, std::span<float> maxima) {
    float* out = maxima.data();
    for_each_block(logits,
                   [out](size_t block, const float* from) { out[block] = block_maximum(from); });
}

static void block_masses(std::span<const float> logits, std::span<const float> maxima,
                         Softmax softmax, std::span<float> masses) {
    float* out = masses.data();
    for_each_block(logits, [out, maxima, softmax](size_t block, const float* from) {
        // Rounding is monotonic: where the largest weighs nothing, no other of the block does.
        if (max_lanes(weight(splat(maxima.data()[block]), softmax)) == 0.0f) {
            out[block] = 0.0f;
            return;
        }
        f32x8 sum[2] = {splat(0.0f), splat(0.0f)};
        for (size_t i = 0; i < kVocabBlock; i += 2 * kLanes) {
            sum[0] += weight(load(from + i), softmax);
            sum[1] += weight(load(from + i + kLanes), softmax);
        }
        out[block] = sum_lanes(sum[0] + sum[1]);
    });
}

static void weights(std::span<const float> logits, Softmax softmax, std::span<float> weights) {
    const float* from = logits.data();
    float* out = weights.data();
    size_t i = 0;
    for (; i + kLanes <= logits.size(); i += kLanes)
        store(out + i, weight(load(from + i), softmax));
    float last[kLanes] = {};
    for (size_t lane = 0; i + lane < logits.size(); ++lane) last[lane] = from[i + lane];
    store(last, weight(load(last), softmax));
    for (size_t lane = 0; i + lane < logits.size(); ++lane) out[i + lane] = last[lane];
}

// The mask's byte for eight tokens.
CAUDAL_INLINE uint32_t mask_byte(std::span<const std::byte> allowed, size_t index) {
    return index < allowed.size() ? static_cast<uint32_t>(allowed.data()[index]) : 0;
}

static void masked_maxima(std::span<const float> logits, std::span<const std::byte> allowed,
                          std::span<float> out, std::span<float> maxima) {
    static_assert(kLanes == 8 && kVocabBlock % 64 == 0);
    constexpr size_t kBytes = kVocabBlock / 8;
    constexpr int32_t kBits[kLanes] = {1, 2, 4, 8, 16, 32, 64, 128};
    const i32x8 bits = load_bytes(kBits);
    const f32x8 nothing = splat(kMinusInfinity);
    const size_t whole = std::min(logits.size() / kVocabBlock, allowed.size() / kBytes);
    for (size_t block = 0; block < whole; ++block) {
        const std::byte* mask = allowed.data() + block * kBytes;
        const float* from = logits.data() + block * kVocabBlock;
        float* to = out.data() + block * kVocabBlock;
        uint64_t words[kBytes / 8];
        std::memcpy(words, mask, kBytes);
        uint64_t any = 0;
        for (const uint64_t word : words) any |= word;
        if (any == 0) {
            for (size_t i = 0; i < kVocabBlock; i += kLanes) store(to + i, nothing);
            maxima.data()[block] = kMinusInfinity;
            continue;
        }
        f32x8 best = nothing;
        for (size_t byte = 0; byte < kBytes; ++byte) {
            const i32x8 set = (i32x8{} + static_cast<int32_t>(mask[byte])) & bits;
            const f32x8 kept = select(set != 0, load(from + byte * 8), nothing);
            store(to + byte * 8, kept);
            best = maximum(kept, best);  // NaN comes first, as in block_maximum
        }
        maxima.data()[block] = max_lanes(best);
    }
    const size_t begin = whole * kVocabBlock;
    for (size_t i = begin; i < logits.size(); ++i) {
        const bool set = (mask_byte(allowed, i / 8) >> (i % 8) & 1u) != 0;
        out.data()[i] = set ? logits.data()[i] : kMinusInfinity;
    }
    block_maxima(out.subspan(begin), maxima.subspan(whole));
}

static SamplingKernels sampling_kernels() {
    return {block_maxima, block_masses, weights, masked_maxima};
}

}  // namespace caudal::CAUDAL_ISA
