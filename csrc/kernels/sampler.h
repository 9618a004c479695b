// Chooses a token from a row of logits, and scores tokens under it.
//
// In this order, as vLLM does it:
//
//   allowed-token mask, banned tokens, logit bias
//   → repetition, presence and frequency penalty
//   → temperature → min_p → top_k → typical_p → top_p → draw
//
// Each filter looks at the distribution that the one before left, renormalised. Wherever tokens are
// ordered, equal ones go by ascending id: top_k keeps exactly k tokens and greedy takes the first.
// Log-probabilities and ranks are those of the logits as given, whatever the parameters.
//
// The result is a function of the arguments alone: of the instruction set only through the logits,
// of neither thread, batch nor earlier calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/candidates.h"
#include "kernels/sampling.h"

namespace caudal {

struct LogitBias {
    int32_t token;
    float bias;
};

// How to choose one token. Ranges are those of caudal.sampling_params.SamplingParams, checked
// there. Token ids outside the vocabulary have no effect.
struct SamplingRow {
    double temperature = 1.0;  // below kGreedyTemperature: the likeliest token
    int64_t top_k = 0;         // 0 and below: all
    double top_p = 1.0;
    double min_p = 0.0;
    double typical_p = 1.0;
    double repetition_penalty = 1.0;
    double presence_penalty = 0.0;
    double frequency_penalty = 0.0;

    // The random number is a function of these three alone.
    uint64_t seed = 0;
    uint32_t stream = 0;
    uint32_t step = 0;

    std::span<const int32_t> prompt_tokens;  // read by the repetition penalty
    std::span<const int32_t> output_tokens;  // read by all penalties
    std::span<const LogitBias> logit_bias;
    std::span<const int32_t> banned_tokens;
    // Bit i % 8 of byte i / 8 allows token i; tokens past the end are not allowed. Empty: no mask.
    std::span<const std::byte> allowed_mask;

    // Likeliest tokens to return beside the chosen one's log-probability; -1: no log-probabilities.
    int32_t logprobs = -1;
};

constexpr double kGreedyTemperature = 1e-5;

enum class SamplingStatus : uint8_t {
    Ok,
    NoUsableLogit,   // every logit of the row is NaN or -inf
    NothingAllowed,  // mask, bans and penalties leave no token with a usable logit
    UnknownToken,    // a token to score is outside the vocabulary
    OutOfMemory,     // set by callers that can't let std::bad_alloc out
};

// For people; static storage.
const char* sampling_status_message(SamplingStatus status);

struct ScoredToken {
    int32_t token = -1;
    float logprob = 0.0f;
};

struct TokenScore {
    int32_t token = -1;
    float logprob = 0.0f;  // -inf for a token whose logit is NaN or -inf
    int32_t rank = 0;      // 1 + the number of tokens with a strictly larger logit
    // The likeliest tokens, by descending logit, then ascending id; fewer than asked for if fewer
    // have a usable logit.
    std::vector<ScoredToken> top;
};

struct SampledToken {
    SamplingStatus status = SamplingStatus::Ok;
    int32_t token = -1;               // -1 unless the status is Ok
    std::optional<TokenScore> score;  // where the row asked for log-probabilities
};

// Buffers for one thread, reused from call to call. They grow to what the largest vocabulary needs;
// what they hold between calls has no meaning, except that `seen` is all zero.
struct SamplingScratch {
    std::vector<float> logits;      // with mask, bias and penalties applied
    std::vector<float> maxima;      // of the logits' blocks
    std::vector<float> raw_maxima;  // of the row's blocks as given
    std::vector<float> masses;      // of blocks
    std::vector<uint32_t> seen;     // by token: occurrences in the history
    std::vector<int32_t> touched;   // tokens whose `seen` isn't zero
    CandidateBuffers candidates;
};

// Chooses a token. `logits` is one row, a float per token of the vocabulary.
SampledToken sample_row(const SamplingKernels& kernels, std::span<const float> logits,
                        const SamplingRow& row, SamplingScratch& scratch);

// Scores `token` and the `top` likeliest tokens under a row. `score` is written if the status is
// Ok.
SamplingStatus score_row(const SamplingKernels& kernels, std::span<const float> logits,
                         int32_t token, int32_t top, SamplingScratch& scratch, TokenScore& score);

}  // namespace caudal
