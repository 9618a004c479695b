// One iteration's work as flat arrays, and what comes out of it.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/sampler.h"

namespace caudal {

// One sequence's tokens in this iteration.
struct SequenceSlice {
    int64_t first_token;  // index into Batch::tokens
    int64_t tokens;
    int64_t context;  // tokens whose keys and values are in the pool already
    std::span<const int32_t> block_table;
    int64_t second_segment = -1;  // position at which the second text of a pair begins; -1: none
    // For each window pool; -1 stands for blocks that none of these tokens sees.
    std::vector<std::span<const int32_t>> window_tables;
    // Slots of recurrent layers' states: those after `context` tokens (-1: zeros, at the start of
    // the sequence), and those after these tokens. A model without such layers has -1 in both.
    int32_t state_source = -1;
    int32_t state_destination = -1;
    int32_t adapter = -1;  // index of the adapter that the tokens are computed with; -1: none

    // The table for a pool, by its index in KVPools.
    std::span<const int32_t> table(size_t pool) const {
        return pool == 0 ? block_table : window_tables[pool - 1];
    }
};

using BlockCopy = std::pair<int32_t, int32_t>;  // source, destination

// A token to draw from the logits of a row.
struct SampleJob {
    int64_t token;  // index into Batch::tokens
    SamplingRow row;
};

// A known token whose log-probability is read from the logits of a row.
struct ScoreJob {
    int64_t token;
    int32_t target;
    int32_t top;
};

// The sum of the states of tokens [first, first + count), added to `carry` (empty: zeros) one after
// the other, so that it doesn't depend on how a sequence is cut into batches. Or each of these
// states by itself.
struct PoolingJob {
    int64_t first;  // index into Batch::tokens
    int64_t count;
    std::vector<double> carry;
    bool each = false;
};

struct Batch {
    std::span<const int32_t> tokens;
    std::vector<SequenceSlice> sequences;
    std::vector<BlockCopy> copies;
    std::vector<std::vector<BlockCopy>> window_copies;  // for each window pool, or empty
    std::vector<SampleJob> samples;
    std::vector<ScoreJob> scores;
    std::vector<PoolingJob> pooling;
    std::vector<float> given;  // [token][channel], for a program that takes it (GivenOp)
};

struct ScoreResult {
    SamplingStatus status = SamplingStatus::Ok;
    TokenScore score;
};

struct BatchResult {
    std::vector<SampledToken> samples;        // one per SampleJob, in order
    std::vector<ScoreResult> scores;          // one per ScoreJob, in order
    std::vector<std::vector<double>> pooled;  // one sum, or all states, per PoolingJob, in order
};

}  // namespace caudal
