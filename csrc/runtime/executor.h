// Runs a program on batches: one call per iteration, all threads, no Python inside.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "isa/kernel_table.h"
#include "kernels/expert_rows.h"
#include "runtime/adapters.h"
#include "runtime/attention_work.h"
#include "runtime/batch.h"
#include "runtime/kv_pool.h"
#include "runtime/plan.h"
#include "runtime/profile.h"
#include "runtime/program.h"
#include "runtime/state_pool.h"
#include "runtime/thread_team.h"
#include "runtime/weight_stream.h"
#include "runtime/weights.h"

namespace caudal {

struct ExecutorOptions {
    int64_t num_blocks;
    std::vector<int64_t> window_blocks;  // of each window pool
    int64_t num_slots;                   // for states of recurrent layers
    KVType kv_type;
    bool float_activations;  // the slow reference mode
    int64_t max_batch_tokens;
    // Bytes of memory for weights that are mapped from a file; -1: all of them have room.
    int64_t weight_memory = -1;
};

class Executor {
  public:
    // Throws std::invalid_argument where the program doesn't fit together.
    Executor(const KernelTable& kernels, ThreadTeam& threads, const Weights& weights,
             Program program, ExecutorOptions options);
    Executor(const Executor&) = delete;
    Executor& operator=(const Executor&) = delete;

    // Throws std::invalid_argument, before anything runs, for a batch that refers to tokens, blocks
    // or positions that don't exist.
    BatchResult execute(const Batch& batch);

    // The same, and adds what each kind of stage cost to `profile`.
    BatchResult execute(const Batch& batch, std::map<std::string, StageTimes>& profile);

    struct LoadedAdapter {
        int32_t index;
        int64_t rank;  // the largest
        size_t bytes;
    };
    // Takes an adapter, which sequences may name by its index from now on. Throws as `Adapter`
    // does, and nothing has changed then.
    LoadedAdapter load_adapter(std::span<const AdapterFactors> factors);
    // Gives an adapter's memory back. Throws std::out_of_range if there is none of this index.
    void unload_adapter(int32_t index);

    // What a block holds, of a kind: pools in their order, and behind them the slots for states.
    // Throws std::out_of_range where there is no such kind or block. What the bytes mean is the
    // kernels' business; they make sense wherever the same model's were computed in the same way.
    std::span<std::byte> block(size_t kind, int64_t index);
    // Bytes of a block of each kind that there is.
    std::vector<size_t> block_bytes() const;

  private:
    // The buffers of a plan, for up to so many rows.
    struct Storage {
        Plan plan;
        int64_t max_rows;
        Reservation memory;                             // what the spans below are parts of
        std::vector<std::span<float>> buffers;          // empty where the plan doesn't use one
        std::vector<std::span<std::byte>> activations;  // as the plan's
    };

    // What routed experts are computed in, one operation after the other.
    struct ExpertsWorkspace {
        Reservation memory;                          // what the spans below are parts of
        std::span<Choice> choices;                   // [row][choice]
        std::array<std::span<std::byte>, 2> inputs;  // tiles in the kinds that gate and up read
        std::span<float> inner;                      // rows of gate and up; then those of down
        std::span<std::byte> activated;              // tiles that down reads
        std::vector<ExpertRows> rows;                // per thread, all alike
        std::vector<std::vector<float>> copies;      // per thread: a tile's rows side by side
    };

    // What adapters compute a linear stage's additions in, one stage after the other.
    struct AdapterWorkspace {
        int64_t rank = 0;  // of the batch's adapters, the largest
        std::vector<float> memory;
        std::span<float> reduced;  // [part][row][rank]
    };

    // Everything threads need to know while a batch runs.
    struct Run;
    // What the operations of a row stage do with a row.
    class RowOps;
    // A stage of experts in one thread's hands.
    class ExpertsRun;
    // An item of attention in one thread's hands.
    class ItemAttention;
    // An item of a sequence stage in one thread's hands.
    class SequenceItem;

    // Floats from one row of a buffer to the next: a cache line more than its width, since rows a
    // multiple of 2 KiB apart would compete for a few sets of the cache.
    int64_t stride(int buffer) const {
        return program_.buffer_widths[static_cast<size_t>(buffer)] + kRowPadding;
    }

    Plan plan_of(const Section& section) const;
    // Of each of the plan's activations.
    std::vector<size_t> activation_bytes(const Plan& plan, int64_t max_rows) const;
    // With the buffers of `others` too.
    Storage make_storage(const Section& section, int64_t max_rows,
                         const std::vector<Op>& others = {}) const;
    // In the buffers of another storage.
    Storage make_storage(const Section& section, int64_t max_rows, const Storage& lender) const;
    ExpertsWorkspace make_experts_workspace() const;
    // What reads weights ahead; null where they have room in memory.
    std::unique_ptr<WeightStream> make_weight_stream() const;
    // Rows of the embeddings that are looked up in by this; the largest number where none is.
    int64_t embedding_rows(EmbedBy by) const;
    // Channels of the rows that batches give; 0 where the program takes none.
    int64_t given_width() const;
    void validate(const Batch& batch) const;
    // That tables of a sequence cover it, and name blocks that there are.
    void validate_tables(const SequenceSlice& sequence) const;
    // That every sequence has its states where it says, and that no two leave theirs in one place.
    void validate_states(const Batch& batch) const;
    void validate_copies(std::span<const BlockCopy> copies, size_t pool) const;
    BatchResult execute(const Batch& batch, std::vector<StageProfile>* profiles);
    // A result of the right size, with the sums of states that there are so far.
    BatchResult unfilled_result(const Batch& batch) const;
    // Plans all attention of the batch and grows what threads need for it.
    void reserve_for_attention(Run& run);
    // Grows what adapters need for the batch.
    void reserve_for_adapters(const Run& run);
    // `adapted` are those of the rows that have an adapter.
    void run_plan(Storage& storage, Run& run, int64_t rows, std::span<const AdaptedRows> adapted,
                  int thread);
    void run_rows(const RowStage& stage, Storage& storage, const Run& run, int64_t begin,
                  int64_t end) const;
    void run_linear(const LinearStage& stage, Storage& storage, int64_t rows,
                    std::span<const AdaptedRows> adapted, int64_t begin, int64_t end) const;
    // Multiplies what a linear stage reads by the first factors of adapters' changes, where there
    // are any; run_linear adds the rest to what it computes.
    void reduce_for_adapters(const LinearStage& stage, const Storage& storage, Run& run,
                             int64_t rows, std::span<const AdaptedRows> adapted, int thread);
    // Where the results of a part of the stage are, for some of its rows: [row][rank].
    float* reduced(const LinearStage& stage, const LinearStage::Part& part, int64_t rows,
                   const AdaptedRows& tile) const;
    bool has_adapter(int32_t index) const;
    void run_experts(const ExpertsStage& stage, Storage& storage, Run& run, int64_t rows,
                     int thread);
    // Item number `index`; `after` is the one that the thread goes on with, -1 for none.
    void run_attention(const AttentionStage& stage, AttentionWork& work, Storage& storage,
                       const Run& run, int32_t index, int32_t after, int thread);
    // Item number `index`.
    void run_sequence(const SequenceStage& stage, Storage& storage, const Run& run, int64_t index);
    // Runs the tail for the tokens that have outputs: logits or states.
    void run_tail(Run& run, int thread);
    void run_head(Run& run, int thread);
    void run_pooling(Run& run, int thread);
    // Copies rows of the tail's residual stream, of the tokens `token_of(row)`, to where `to`
    // computes.
    template <class TokenOf>
    void gather(Storage& to, Run& run, int64_t rows, int thread, const TokenOf& token_of);
    SampledToken sample(std::span<const float> logits, const SamplingRow& row,
                        SamplingScratch& scratch) const;
    ScoreResult score(std::span<const float> logits, const ScoreJob& job,
                      SamplingScratch& scratch) const;
    void fill_angles(const Run& run, int64_t begin, int64_t end);
    AttentionWork& attention_work(Run& run, const AttentionStage& stage) const;

    // Hands [0, total) out in pieces of `piece`, then waits for all threads. Each thread has a
    // share of its own, which it takes in order, so that weights reach it as one stream from
    // memory; then it helps the others with theirs. Work that takes a third number is told where
    // its thread will go on, `total` for nowhere; its pieces go in order to whoever asks.
    template <class Work>
    void share(Run& run, int thread, const StageCost& cost, int64_t total, int64_t piece,
               const Work& work);

    const KernelTable& kernels_;
    ThreadTeam& threads_;
    const Weights& weights_;
    const Program program_;
    const ExecutorOptions options_;
    KVPools kv_;
    StatePool slots_;
    int64_t vocab_size_;  // width of the logits; 0: an encoder
    Storage body_;
    Storage tail_;  // in the body's buffers
    Storage head_;
    Storage states_;
    ExpertsWorkspace experts_;
    std::vector<std::vector<float>> angles_;          // per rope table: [row][cosines, sines]
    std::vector<std::vector<float>> thread_scratch_;  // attention, per thread
    std::vector<SamplingScratch> sampling_scratch_;   // per thread
    std::vector<float> split_workspace_;
    std::vector<std::unique_ptr<const Adapter>> adapters_;  // by index; null: none
    AdapterWorkspace adapted_;
    std::unique_ptr<WeightStream> weight_stream_;
};

}  // namespace caudal
