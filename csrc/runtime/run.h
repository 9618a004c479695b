// One batch under way.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "runtime/executor.h"

namespace caudal {

// Activations are laid out in tiles of four rows, so row stages hand out whole tiles.
constexpr int64_t kRowTile = 4;

// Everything that threads need to know while a batch runs.
struct Executor::Run {
    const Batch& batch;
    BatchResult& result;
    std::vector<StageProfile>* profiles;       // per thread; null unless asked for
    std::vector<int64_t> positions;            // per token
    std::vector<const SequenceSlice*> slices;  // per token
    std::vector<int64_t> wanted;  // tokens that the tail runs for: a row each, in order
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
    std::vector<int64_t> wanted_row;     // per token: its row in `wanted`, or -1
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

template <class Work>
void Executor::share(Run& run, int thread, const StageCost& cost, int64_t total, int64_t piece,
                     const Work& work) {
    const uint64_t number = run.stage_numbers[static_cast<size_t>(thread)].value++;
    if (thread == 0) run.counters[(number + 1) % 3].next.store(0, std::memory_order_relaxed);
    std::atomic<int64_t>& next = run.counters[number % 3].next;
    const auto take_pieces = [&] {
        const auto take = [&] { return next.fetch_add(piece, std::memory_order_relaxed); };
        for (int64_t begin = take(); begin < total;) {
            const int64_t end = std::min(begin + piece, total);
            if constexpr (std::is_invocable_v<const Work&, int64_t, int64_t, int64_t>) {
                const int64_t after = take();
                work(begin, end, std::min(after, total));
                begin = after;
            } else {
                work(begin, end);
                begin = take();
            }
        }
    };
    if (run.profiles == nullptr) {
        take_pieces();
        threads_.barrier();
        return;
    }
    const auto began = ProfileClock::now();
    take_pieces();
    const auto arrived = ProfileClock::now();
    threads_.barrier();
    StageTimes& times = (*run.profiles)[static_cast<size_t>(thread)][cost.name];
    times.work_seconds += seconds_between(began, arrived);
    times.wait_seconds += seconds_between(arrived, ProfileClock::now());
    if (thread != 0) return;  // the rest is counted once
    times.bytes += cost.bytes;
    times.operations += cost.operations;
    times.calls += 1;
}

}  // namespace caudal
