// From what the body computed to what was asked for: logits, samples, scores, and states of tokens.
#include <algorithm>
#include <new>

#include "runtime/executor.h"
#include "runtime/run.h"

namespace caudal {

namespace {

// Columns that one thread copies or adds up at a time.
constexpr int64_t kColumnPiece = 64;

}  // namespace

void Executor::run_tail(Run& run, int thread) {
    const auto rows = static_cast<int64_t>(run.output_rows.size());
    // Rows move up to where the tail finds them one after the other: never down, so that in order
    // none is overwritten before it has moved.
    if (run.output_rows.size() < run.batch.tokens.size()) {
        for (const int buffer : program_.carried) {
            float* data = body_.buffers[static_cast<size_t>(buffer)].data();
            const int64_t width = program_.buffer_widths[static_cast<size_t>(buffer)];
            share(run, thread, {"gather rows"}, width, kColumnPiece,
                  [&](int64_t begin, int64_t end) {
                      for (int64_t row = 0; row < rows; ++row) {
                          const int64_t token = run.output_rows[static_cast<size_t>(row)];
                          if (token == row) continue;
                          std::copy_n(data + token * stride(buffer) + begin, end - begin,
                                      data + row * stride(buffer) + begin);
                      }
                  });
        }
    }
    if (rows == 0) return;
    const auto token_of = [&](int64_t row) { return run.output_rows[static_cast<size_t>(row)]; };
    run_plan(tail_, run, rows, run.adapted(rows, token_of), thread);
}

// Both turn a lack of memory into a status: an exception would leave the other threads at the
// barrier.
SampledToken Executor::sample(std::span<const float> logits, const SamplingRow& row,
                              SamplingScratch& scratch) const {
    try {
        return sample_row(kernels_.sampling, logits, row, scratch);
    } catch (const std::bad_alloc&) {
        SampledToken failed;
        failed.status = SamplingStatus::OutOfMemory;
        return failed;
    }
}

ScoreResult Executor::score(std::span<const float> logits, const ScoreJob& job,
                            SamplingScratch& scratch) const {
    ScoreResult result;
    try {
        result.status =
            score_row(kernels_.sampling, logits, job.target, job.top, scratch, result.score);
    } catch (const std::bad_alloc&) {
        result.status = SamplingStatus::OutOfMemory;
    }
    return result;
}

template <class TokenOf>
void Executor::gather(Storage& to, Run& run, int64_t rows, int thread, const TokenOf& token_of) {
    const auto hidden = static_cast<size_t>(program_.hidden);
    const int64_t width = program_.buffer_widths[hidden];
    const float* from = tail_.buffers[hidden].data();
    float* into = to.buffers[hidden].data();
    share(run, thread, {"gather rows"}, rows, kRowTile, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const int64_t tail_row = run.output_row_of[static_cast<size_t>(token_of(row))];
            std::copy_n(from + tail_row * stride(program_.hidden), width,
                        into + row * stride(program_.hidden));
        }
    });
}

void Executor::run_pooling(Run& run, int thread) {
    const auto state = static_cast<size_t>(program_.state);
    const int64_t width = program_.buffer_widths[state];
    const float* states = states_.buffers[state].data();
    const auto total = static_cast<int64_t>(run.pooled_rows.size());
    for (int64_t first = 0; first < total; first += states_.max_rows) {
        const int64_t rows = std::min(states_.max_rows, total - first);
        const auto* pooled = run.pooled_rows.data() + first;
        const auto token_of = [&](int64_t row) { return pooled[row].token; };
        gather(states_, run, rows, thread, token_of);
        run_plan(states_, run, rows, run.adapted(rows, token_of), thread);
        share(run, thread, {"pooling"}, width, kColumnPiece, [&](int64_t begin, int64_t end) {
            for (int64_t row = 0; row < rows; ++row) {
                double* sum = run.result.pooled[pooled[row].job].data() + pooled[row].place * width;
                for (int64_t i = begin; i < end; ++i)
                    sum[i] += double{states[row * stride(program_.state) + i]};
            }
        });
    }
}

void Executor::run_head(Run& run, int thread) {
    if (run.logits_rows.empty()) return;  // an encoder has no logits to point to
    const float* logits = head_.buffers[static_cast<size_t>(program_.logits)].data();
    const auto total = static_cast<int64_t>(run.logits_rows.size());
    for (int64_t first = 0; first < total; first += head_.max_rows) {
        const int64_t rows = std::min(head_.max_rows, total - first);
        const auto token_of = [&](int64_t row) {
            return run.logits_rows[static_cast<size_t>(first + row)].token;
        };
        gather(head_, run, rows, thread, token_of);
        run_plan(head_, run, rows, run.adapted(rows, token_of), thread);
        share(run, thread, {"sample"}, rows, 1, [&](int64_t begin, int64_t end) {
            SamplingScratch& scratch = sampling_scratch_[static_cast<size_t>(thread)];
            for (int64_t row = begin; row < end; ++row) {
                const Run::LogitsRow& logits_row =
                    run.logits_rows[static_cast<size_t>(first + row)];
                const std::span<const float> values(logits + row * stride(program_.logits),
                                                    static_cast<size_t>(vocab_size_));
                for (const size_t i : logits_row.samples) {
                    run.result.samples[i] = sample(values, run.batch.samples[i].row, scratch);
                }
                for (const size_t i : logits_row.scores) {
                    run.result.scores[i] = score(values, run.batch.scores[i], scratch);
                }
            }
        });
    }
}

}  // namespace caudal
