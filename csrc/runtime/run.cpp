#include "runtime/run.h"

namespace caudal {

Executor::Run::Run(const Batch& batch_, BatchResult& result_, std::vector<StageProfile>* profiles_,
                   int threads, std::span<const std::unique_ptr<const Adapter>> loaded)
    : batch(batch_), result(result_), profiles(profiles_), shares(static_cast<size_t>(threads)) {
    find_positions();
    find_adapters(loaded);
    find_logits_rows();
    find_pooled_rows();
    find_output_rows();
}

void Executor::Run::find_positions() {
    for (const SequenceSlice& sequence : batch.sequences) {
        for (int64_t i = 0; i < sequence.tokens; ++i) {
            positions.push_back(sequence.context + i);
            slices.push_back(&sequence);
        }
    }
}

void Executor::Run::find_adapters(std::span<const std::unique_ptr<const Adapter>> loaded) {
    const auto has_one = [](const SequenceSlice& sequence) { return sequence.adapter >= 0; };
    if (std::none_of(batch.sequences.begin(), batch.sequences.end(), has_one)) return;
    for (const SequenceSlice* sequence : slices) {
        adapters.push_back(has_one(*sequence) ? loaded[static_cast<size_t>(sequence->adapter)].get()
                                              : nullptr);
    }
}

// Jobs that read the logits of the same token share a row.
void Executor::Run::find_logits_rows() {
    std::vector<int64_t> row_of(batch.tokens.size(), -1);
    const auto row_for = [&](int64_t token) -> LogitsRow& {
        int64_t& row = row_of[static_cast<size_t>(token)];
        if (row < 0) {
            row = static_cast<int64_t>(logits_rows.size());
            logits_rows.push_back({token, {}, {}});
        }
        return logits_rows[static_cast<size_t>(row)];
    };
    for (size_t i = 0; i < batch.samples.size(); ++i) {
        row_for(batch.samples[i].token).samples.push_back(i);
    }
    for (size_t i = 0; i < batch.scores.size(); ++i) {
        row_for(batch.scores[i].token).scores.push_back(i);
    }
}

void Executor::Run::find_pooled_rows() {
    for (size_t i = 0; i < batch.pooling.size(); ++i) {
        const PoolingJob& job = batch.pooling[i];
        for (int64_t token = job.first; token < job.first + job.count; ++token) {
            pooled_rows.push_back({token, i, job.each ? token - job.first : 0});
        }
    }
}

void Executor::Run::find_output_rows() {
    std::vector<bool> has_output(batch.tokens.size());
    for (const LogitsRow& row : logits_rows) has_output[static_cast<size_t>(row.token)] = true;
    for (const PooledRow& row : pooled_rows) has_output[static_cast<size_t>(row.token)] = true;
    output_row_of.assign(batch.tokens.size(), -1);
    for (size_t token = 0; token < batch.tokens.size(); ++token) {
        if (!has_output[token]) continue;
        output_row_of[token] = static_cast<int64_t>(output_rows.size());
        output_rows.push_back(static_cast<int64_t>(token));
    }
}

}  // namespace caudal
