#include "kernels/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "kernels/philox.h"

namespace caudal {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Exponents at which a token weighs nothing (see Softmax).
constexpr double kWeightlessDepth = 87.0;

bool in_vocabulary(int32_t token, std::span<const float> logits) {
    return token >= 0 && static_cast<size_t>(token) < logits.size();
}

// A row whose blocks' maxima are known.
ScannedRow scanned_row(std::span<const float> logits, std::span<const float> maxima) {
    float maximum = -kInfinity;
    for (const float candidate : maxima) maximum = std::max(maximum, candidate);
    return {logits, maxima, maximum};
}

ScannedRow scan(const SamplingKernels& kernels, std::span<const float> logits,
                std::vector<float>& maxima) {
    maxima.resize(vocab_blocks(logits.size()));
    kernels.block_maxima(logits, maxima);
    return scanned_row(logits, maxima);
}

// The masses of all blocks, left in `masses`, and their sum.
double weigh_blocks(const SamplingKernels& kernels, const ScannedRow& row, Softmax softmax,
                    std::vector<float>& masses) {
    masses.resize(row.maxima.size());
    kernels.block_masses(row.logits, row.maxima, softmax, masses);
    return std::accumulate(masses.begin(), masses.end(), 0.0);
}

void penalise(std::span<float> logits, const SamplingRow& row, SamplingScratch& scratch) {
    const bool repetition = row.repetition_penalty != 1.0;
    constexpr uint32_t kInPrompt = 0x80000000u;  // the other bits count occurrences in the output
    if (scratch.seen.size() < logits.size()) scratch.seen.resize(logits.size(), 0);
    scratch.touched.clear();
    // Reserved first, so that nothing can throw while `seen` isn't zero.
    scratch.touched.reserve(
        std::min(logits.size(), row.prompt_tokens.size() + row.output_tokens.size()));
    const auto touch = [&](int32_t token) -> uint32_t& {
        uint32_t& seen = scratch.seen[static_cast<size_t>(token)];
        if (seen == 0) scratch.touched.push_back(token);
        return seen;
    };
    for (const int32_t token : row.output_tokens) {
        if (in_vocabulary(token, logits)) ++touch(token);
    }
    if (repetition) {
        for (const int32_t token : row.prompt_tokens) {
            if (in_vocabulary(token, logits)) touch(token) |= kInPrompt;
        }
    }
    for (const int32_t token : scratch.touched) {
        uint32_t& seen = scratch.seen[static_cast<size_t>(token)];
        const uint32_t count = seen & ~kInPrompt;
        seen = 0;
        double logit = logits[static_cast<size_t>(token)];
        if (!(logit > -kInfinity)) continue;  // impossible stays impossible
        logit = logit > 0.0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
        if (count != 0) logit -= row.presence_penalty + row.frequency_penalty * count;
        logits[static_cast<size_t>(token)] = static_cast<float>(logit);
    }
}

// The logits to choose from: the row itself if nothing changes them, otherwise a changed copy.
ScannedRow process(const SamplingKernels& kernels, std::span<const float> logits,
                   const SamplingRow& row, SamplingScratch& scratch) {
    const bool penalties = (row.repetition_penalty != 1.0 &&
                            !(row.prompt_tokens.empty() && row.output_tokens.empty())) ||
                           ((row.presence_penalty != 0.0 || row.frequency_penalty != 0.0) &&
                            !row.output_tokens.empty());
    const bool changed_singly = penalties || !row.banned_tokens.empty() || !row.logit_bias.empty();
    if (row.allowed_mask.empty() && !changed_singly) return scan(kernels, logits, scratch.maxima);
    scratch.logits.resize(logits.size());
    const std::span<float> out = scratch.logits;
    if (row.allowed_mask.empty()) {
        std::copy(logits.begin(), logits.end(), out.begin());
    } else {
        scratch.maxima.resize(vocab_blocks(logits.size()));
        kernels.masked_maxima(logits, row.allowed_mask, out, scratch.maxima);
        if (!changed_singly) return scanned_row(out, scratch.maxima);
    }
    for (const int32_t token : row.banned_tokens) {
        if (in_vocabulary(token, logits)) out[static_cast<size_t>(token)] = -kInfinity;
    }
    for (const LogitBias& entry : row.logit_bias) {
        if (in_vocabulary(entry.token, logits)) out[static_cast<size_t>(entry.token)] += entry.bias;
    }
    if (penalties) penalise(out, row, scratch);
    return scan(kernels, out, scratch.maxima);
}

int32_t first_maximum(const ScannedRow& row) {
    const auto block = std::find(row.maxima.begin(), row.maxima.end(), row.maximum);
    const auto begin = (block - row.maxima.begin()) * static_cast<std::ptrdiff_t>(kVocabBlock);
    const auto found = std::find(row.logits.begin() + begin, row.logits.end(), row.maximum);
    return static_cast<int32_t>(found - row.logits.begin());
}

// Inverse CDF over the whole vocabulary in order of ids: first by blocks, then inside one.
int32_t draw_unfiltered(const SamplingKernels& kernels, const ScannedRow& row, Softmax softmax,
                        double uniform, SamplingScratch& scratch) {
    const double target = uniform * weigh_blocks(kernels, row, softmax, scratch.masses);
    size_t block = 0;
    double below = 0.0;
    for (; block + 1 < scratch.masses.size(); ++block) {
        if (below + scratch.masses[block] >= target) break;
        below += scratch.masses[block];
    }
    const size_t begin = block * kVocabBlock;
    const size_t count = std::min(kVocabBlock, row.logits.size() - begin);
    float weights[kVocabBlock];
    kernels.weights(row.logits.subspan(begin, count), softmax, {weights, count});
    // A block's mass and the sum here may differ in their last bits, so the target may lie a little
    // beyond the last token that has weight.
    size_t drawn = 0;
    for (size_t i = 0; i < count; ++i) {
        if (weights[i] == 0.0f) continue;
        drawn = i;
        below += weights[i];
        if (below >= target) break;
    }
    return static_cast<int32_t>(begin + drawn);
}

// Inverse CDF in descending order of logits over the shortest prefix that reaches mass `nucleus`.
int32_t draw_from(const MassOrder& order, double nucleus, double uniform) {
    const double mass = nucleus < order.total() ? order.cut(nucleus).mass : order.total();
    return candidate_token(order.cut(uniform * mass).key);
}

int32_t draw(const SamplingKernels& kernels, const ScannedRow& row, const SamplingRow& params,
             SamplingScratch& scratch) {
    const Softmax softmax = row.softmax(params.temperature);
    const double uniform = philox_uniform(params.seed, params.stream, params.step);
    const bool top_k = params.top_k > 0 && static_cast<size_t>(params.top_k) < row.logits.size();
    const bool min_p = params.min_p > 0.0;
    const bool typical_p = params.typical_p < 1.0;
    if (!top_k && !min_p && !typical_p && params.top_p >= 1.0) {
        return draw_unfiltered(kernels, row, softmax, uniform, scratch);
    }

    // The logit of a token whose probability is e^-depth of the likeliest one's.
    const auto logit_at = [&](double depth) {
        return static_cast<float>(softmax.maximum - params.temperature * depth);
    };
    const CandidateWeights weights(kernels, row.logits, softmax);
    CandidateBuffers& buffers = scratch.candidates;
    if (!top_k && !min_p && !typical_p) {
        // top_p alone: a few likely tokens usually hold the mass that is asked for. Only if they
        // don't, unlikelier ones matter.
        const double nucleus = params.top_p * weigh_blocks(kernels, row, softmax, scratch.masses);
        for (double depth = 6.0; depth < kWeightlessDepth; depth *= 2.0) {
            const auto likely = collect_above(row, logit_at(depth), buffers);
            if (likely.empty()) break;
            const MassOrder order(weights, likely, buffers);
            if (order.total() >= nucleus) return draw_from(order, nucleus, uniform);
        }
    }
    const double depth =
        min_p ? std::clamp(-std::log(params.min_p), 0.0, kWeightlessDepth) : kWeightlessDepth;
    const float lowest = logit_at(depth);
    std::span<CandidateKey> kept =
        top_k ? collect_largest(row, static_cast<size_t>(params.top_k), lowest, buffers)
              : collect_above(row, lowest, buffers);
    if (kept.empty()) return first_maximum(row);  // only where a parameter isn't a number
    if (typical_p) kept = keep_typical(weights, kept, params.typical_p, buffers);
    const MassOrder order(weights, kept, buffers);
    return draw_from(order, params.top_p * order.total(), uniform);
}

TokenScore score(const SamplingKernels& kernels, const ScannedRow& row, int32_t token, int32_t top,
                 SamplingScratch& scratch) {
    const Softmax softmax = row.softmax(1.0);
    const double log_mass = std::log(weigh_blocks(kernels, row, softmax, scratch.masses));
    const auto logit_of = [&](int32_t id) {
        const float logit = row.logits[static_cast<size_t>(id)];
        return std::isnan(logit) ? -kInfinity : logit;
    };
    const auto logprob_of = [&](int32_t id) {
        const float finite = std::min(logit_of(id), std::numeric_limits<float>::max());
        return static_cast<float>((double{finite} - softmax.maximum) - log_mass);
    };

    TokenScore result{token, logprob_of(token), 1, {}};
    const float logit = logit_of(token);
    for (size_t block = 0; block < row.maxima.size(); ++block) {
        if (!(row.maxima[block] > logit)) continue;
        const size_t begin = block * kVocabBlock;
        const size_t end = std::min(begin + kVocabBlock, row.logits.size());
        for (size_t i = begin; i < end; ++i) result.rank += row.logits[i] > logit ? 1 : 0;
    }

    const std::span<CandidateKey> best =
        collect_largest(row, static_cast<size_t>(std::max(top, 0)), -kInfinity, scratch.candidates);
    std::sort(best.begin(), best.end(), std::greater<>());
    result.top.reserve(best.size());
    for (const CandidateKey key : best) {
        result.top.push_back({candidate_token(key), logprob_of(candidate_token(key))});
    }
    return result;
}

}  // namespace

const char* sampling_status_message(SamplingStatus status) {
    switch (status) {
        case SamplingStatus::Ok:
            return "ok";
        case SamplingStatus::NoUsableLogit:
            return "the model gave no usable logits: all are NaN or minus infinity";
        case SamplingStatus::NothingAllowed:
            return "no token can be chosen: all are banned, masked out or have unusable logits";
        case SamplingStatus::UnknownToken:
            return "the token to score is outside the vocabulary";
        case SamplingStatus::OutOfMemory:
            return "there was not enough memory to choose a token";
    }
    return "unknown status";
}

SampledToken sample_row(const SamplingKernels& kernels, std::span<const float> logits,
                        const SamplingRow& row, SamplingScratch& scratch) {
    const ScannedRow scanned = process(kernels, logits, row, scratch);
    const bool changed = scanned.logits.data() != logits.data();
    if (!scanned.possible()) {
        const bool usable = changed && scan(kernels, logits, scratch.raw_maxima).possible();
        return {usable ? SamplingStatus::NothingAllowed : SamplingStatus::NoUsableLogit, -1, {}};
    }
    const bool greedy = !(row.temperature >= kGreedyTemperature) || row.top_k == 1;
    SampledToken result;
    result.token = greedy ? first_maximum(scanned) : draw(kernels, scanned, row, scratch);
    if (row.logprobs >= 0) {
        const ScannedRow raw = changed ? scan(kernels, logits, scratch.raw_maxima) : scanned;
        result.score = score(kernels, raw, result.token, row.logprobs, scratch);
    }
    return result;
}

SamplingStatus score_row(const SamplingKernels& kernels, std::span<const float> logits,
                         int32_t token, int32_t top, SamplingScratch& scratch, TokenScore& result) {
    if (!in_vocabulary(token, logits)) return SamplingStatus::UnknownToken;
    const ScannedRow scanned = scan(kernels, logits, scratch.maxima);
    if (!scanned.possible()) return SamplingStatus::NoUsableLogit;
    result = score(kernels, scanned, token, top, scratch);
    return SamplingStatus::Ok;
}

}  // namespace caudal
