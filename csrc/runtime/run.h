// One batch under way.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/executor.h"

namespace caudal {

// Everything that threads need to know while a batch runs.
struct Executor::Run {
    const Batch& batch;
    BatchResult& result;
    std::vector<StageProfile>* profiles;       // per thread; null unless asked for
    std::vector<int64_t> positions;            // per token
    std::vector<const SequenceSlice*> slices;  // per token
    struct LogitsRow {
        int64_t token;
        std::vector<size_t> samples;  // indices of jobs that read this row
        std::vector<size_t> scores;
    };
    std::vector<LogitsRow> logits_rows;
    struct PooledRow {
        int64_t token;
        size_t job;
    };
    std::vector<PooledRow> pooled_rows;  // in order of jobs and, within one, of tokens
    struct Attention {
        AttentionShape shape;
        KVGeometry kv;
        AttentionWork work;
    };
    std::vector<std::unique_ptr<Attention>> attention;
    // Three counters in turn: while one stage hands out work, the next one's is reset, and the one
    // before may still be read by a thread that hasn't reached the barrier's end.
    struct alignas(64) Counter {
        std::atomic<int64_t> next{0};
    };
    std::array<Counter, 3> counters;
    struct alignas(64) StageNumber {
        uint64_t value = 0;
    };
    std::vector<StageNumber> stage_numbers;  // per thread; all threads count alike
};

}  // namespace caudal
