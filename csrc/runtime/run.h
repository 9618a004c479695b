// One batch under way.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "runtime/executor.h"

namespace caudal {

// Pieces of a stage per thread: enough that a thread that is held up by another process doesn't
// hold up the rest, few enough that claiming them costs nothing.
constexpr int64_t kPiecesPerThread = 8;

struct Executor::Run {
    // A row of logits, and the jobs that read it, by index.
    struct LogitsRow {
        int64_t token;
        std::vector<size_t> samples;
        std::vector<size_t> scores;
    };
    struct PooledRow {
        int64_t token;
        size_t job;
        int64_t place;  // of its state among the job's results
    };
    struct Attention {
        AttentionShape shape;
        KVGeometry kv;
        AttentionWork work;
    };
    // How far a stage's work is handed out: of each thread's share, the pieces that are taken.
    // Two counters in turn: while one stage hands out work, the next one's is reset, which nobody
    // has read since all threads arrived at the barrier before.
    struct alignas(64) Share {
        std::array<std::atomic<int64_t>, 2> taken{};
        uint64_t stage = 0;  // all threads count alike
    };

    // `profiles` is null unless they are asked for.
    Run(const Batch& batch, BatchResult& result, std::vector<StageProfile>* profiles, int threads,
        std::span<const std::unique_ptr<const Adapter>> adapters);

    // Those of a section's rows that have an adapter.
    template <class TokenOf>
    std::vector<AdaptedRows> adapted(int64_t rows, const TokenOf& token_of) const;

    const Batch& batch;
    BatchResult& result;
    std::vector<StageProfile>* profiles;       // per thread
    std::vector<int64_t> positions;            // per token
    std::vector<const SequenceSlice*> slices;  // per token
    std::vector<const Adapter*> adapters;      // per token, or null; empty: all null
    std::vector<LogitsRow> logits_rows;
    std::vector<PooledRow> pooled_rows;  // in order of jobs and, within one, of tokens
    std::vector<int64_t> output_rows;    // tokens that the tail runs for: a row each, in order
    std::vector<int64_t> output_row_of;  // per token: its row among them, or -1
    std::vector<std::unique_ptr<Attention>> attention;
    std::vector<Share> shares;  // per thread

  private:
    void find_positions();
    void find_adapters(std::span<const std::unique_ptr<const Adapter>> loaded);
    void find_logits_rows();
    void find_pooled_rows();
    void find_output_rows();
};

template <class TokenOf>
std::vector<AdaptedRows> Executor::Run::adapted(int64_t rows, const TokenOf& token_of) const {
    std::vector<AdaptedRows> tiles;
    if (adapters.empty()) return tiles;
    for (int64_t row = 0; row < rows; ++row) {
        const Adapter* adapter = adapters[static_cast<size_t>(token_of(row))];
        if (adapter == nullptr) continue;
        const bool joins = !tiles.empty() && tiles.back().adapter == adapter &&
                           tiles.back().first + tiles.back().count == row &&
                           tiles.back().count < kAdapterRows;
        if (joins) {
            tiles.back().count += 1;
        } else {
            tiles.push_back({adapter, row, 1});
        }
    }
    return tiles;
}

template <class Work>
void Executor::share(Run& run, int thread, const StageCost& cost, int64_t total, int64_t piece,
                     const Work& work) {
    constexpr bool told_next = std::is_invocable_v<const Work&, int64_t, int64_t, int64_t>;
    const uint64_t number = run.shares[static_cast<size_t>(thread)].stage++;
    run.shares[static_cast<size_t>(thread)].taken[(number + 1) % 2].store(
        0, std::memory_order_relaxed);
    const int64_t pieces = (total + piece - 1) / piece;
    const int64_t owners = told_next ? 1 : threads_.size();
    const auto begin_of = [&](int64_t owner) { return (pieces * owner + owners - 1) / owners; };
    int64_t done = 0;  // shares that nothing is left of, from this thread's on
    const auto take = [&] {
        for (; done < owners; ++done) {
            const int64_t owner = (thread + done) % owners;
            std::atomic<int64_t>& taken = run.shares[static_cast<size_t>(owner)].taken[number % 2];
            const int64_t index = begin_of(owner) + taken.fetch_add(1, std::memory_order_relaxed);
            if (index < begin_of(owner + 1)) return index;
        }
        return pieces;
    };
    const auto take_pieces = [&] {
        for (int64_t index = take(); index < pieces;) {
            const int64_t begin = index * piece;
            const int64_t end = std::min(begin + piece, total);
            if constexpr (told_next) {
                const int64_t next = take();
                work(begin, end, std::min(next * piece, total));
                index = next;
            } else {
                work(begin, end);
                index = take();
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
