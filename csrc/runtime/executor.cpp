#include "runtime/executor.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/run.h"

namespace caudal {

namespace {

// Rows of logits held at once: 32 rows of a 262k vocabulary are 33 MB.
constexpr int64_t kHeadRows = 32;

bool needs_only_its_row(const Op& op) {
    return std::visit([](const auto& known) { return known.kOnlyItsRow; }, op);
}

std::vector<int> logits_of(const Program& program) {
    return program.logits < 0 ? std::vector<int>{} : std::vector<int>{program.logits};
}

}  // namespace

Executor::Executor(const KernelTable& kernels, ThreadTeam& threads, const Weights& weights,
                   Program program, ExecutorOptions options)
    : kernels_(kernels),
      threads_(threads),
      weights_(weights),
      program_(std::move(program)),
      options_(std::move(options)),
      kv_(program_.kv_layers, options_.kv_type, options_.num_blocks, options_.window_blocks),
      slots_(program_.state_layers, options_.num_slots),
      vocab_size_(program_.logits < 0
                      ? 0
                      : program_.buffer_widths.at(static_cast<size_t>(program_.logits))),
      body_(make_storage({program_.body, {}, program_.carried}, options_.max_batch_tokens,
                         program_.tail)),
      tail_(make_storage({program_.tail, program_.carried, {program_.hidden}},
                         options_.max_batch_tokens, body_)),
      head_(make_storage({program_.head, {program_.hidden}, logits_of(program_)},
                         std::min(kHeadRows, options_.max_batch_tokens))),
      states_(make_storage({program_.states, {program_.hidden}, {program_.state}},
                           std::min(kHeadRows, options_.max_batch_tokens))),
      experts_(make_experts_workspace()),
      thread_scratch_(static_cast<size_t>(threads.size())),
      sampling_scratch_(static_cast<size_t>(threads.size())) {
    if (options_.max_batch_tokens <= 0)
        throw std::invalid_argument("max_batch_tokens must be positive");
    for (const auto* ops : {&program_.tail, &program_.head, &program_.states}) {
        if (!std::all_of(ops->begin(), ops->end(), needs_only_its_row)) {
            throw std::invalid_argument("only the body may look at more than a row");
        }
    }
    for (const RopeTable& table : program_.rope_tables) {
        angles_.emplace_back(2 * table.inverse_frequencies.size() *
                             static_cast<size_t>(options_.max_batch_tokens));
    }
    weight_stream_ = make_weight_stream();
}

std::unique_ptr<WeightStream> Executor::make_weight_stream() const {
    const Mapping* mapping = weights_.mapping();
    const auto memory = static_cast<size_t>(std::max<int64_t>(0, options_.weight_memory));
    if (mapping == nullptr || options_.weight_memory < 0 || weights_.image_bytes() <= memory) {
        return nullptr;
    }
    std::span<const std::byte> ring;
    for (const Storage* storage : {&body_, &tail_, &head_}) {
        for (const Stage& stage : storage->plan.stages) {
            const auto* linear = std::get_if<LinearStage>(&stage);
            if (linear == nullptr) continue;
            for (const LinearStage::Part& part : linear->parts) {
                const std::span<const std::byte> bytes = weights_.bytes_of(part.op.weight);
                if (ring.empty()) ring = bytes;
                const std::byte* begin = std::min(ring.data(), bytes.data());
                const std::byte* end =
                    std::max(ring.data() + ring.size(), bytes.data() + bytes.size());
                ring = {begin, end};
            }
        }
    }
    return std::make_unique<WeightStream>(*mapping, ring, memory);
}

Plan Executor::plan_of(const Section& section) const {
    return make_plan(section, program_, weights_, kernels_.linear, options_.float_activations);
}

std::vector<size_t> Executor::activation_bytes(const Plan& plan, int64_t max_rows) const {
    std::vector<size_t> sizes;
    for (const ConvertedBuffer& converted : plan.activations) {
        sizes.push_back(kernels_.linear.activation_bytes(converted.kind, max_rows, converted.cols));
    }
    return sizes;
}

Executor::Storage Executor::make_storage(const Section& section, int64_t max_rows,
                                         const std::vector<Op>& others) const {
    Plan plan = plan_of(section);
    std::vector<bool> used(program_.buffer_widths.size());
    mark_buffers(section.ops, used);
    mark_buffers(others, used);
    used.at(static_cast<size_t>(program_.hidden)) = true;
    used.at(static_cast<size_t>(program_.state)) = true;

    std::vector<size_t> sizes;  // in bytes: of the buffers, then of the activations
    for (size_t i = 0; i < used.size(); ++i) {
        const auto floats = static_cast<size_t>(stride(static_cast<int>(i)) * max_rows);
        sizes.push_back(used[i] ? floats * sizeof(float) : 0);
    }
    for (const size_t bytes : activation_bytes(plan, max_rows)) sizes.push_back(bytes);
    Storage storage{std::move(plan), max_rows, reserve(sizes), {}, {}};
    std::vector<std::span<std::byte>> parts = split(storage.memory.bytes(), sizes);
    for (size_t i = 0; i < parts.size(); ++i) {
        if (i < used.size()) {
            storage.buffers.emplace_back(reinterpret_cast<float*>(parts[i].data()),
                                         sizes[i] / sizeof(float));
        } else {
            storage.activations.push_back(parts[i]);
        }
    }
    return storage;
}

Executor::Storage Executor::make_storage(const Section& section, int64_t max_rows,
                                         const Storage& lender) const {
    Plan plan = plan_of(section);
    const std::vector<size_t> sizes = activation_bytes(plan, max_rows);
    Storage storage{std::move(plan), max_rows, reserve(sizes), lender.buffers, {}};
    storage.activations = split(storage.memory.bytes(), sizes);
    return storage;
}

int64_t Executor::embedding_rows(EmbedBy by) const {
    int64_t rows = std::numeric_limits<int64_t>::max();
    for (const Op& op : program_.body) {
        const auto* embed = std::get_if<EmbedOp>(&op);
        if (embed != nullptr && embed->by == by) {
            rows = std::min(rows, weights_.matrix(embed->weight).rows);
        }
    }
    return rows;
}

int64_t Executor::given_width() const {
    for (const Op& op : program_.body) {
        const auto* given = std::get_if<GivenOp>(&op);
        if (given != nullptr) return program_.buffer_widths[static_cast<size_t>(given->out)];
    }
    return 0;
}

namespace {

void require(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(std::string("bad batch: ") + what);
}

}  // namespace

void Executor::validate_tables(const SequenceSlice& sequence) const {
    const int64_t end = sequence.context + sequence.tokens;
    const int64_t needed = (end + kBlockTokens - 1) / kBlockTokens;
    require(static_cast<int64_t>(sequence.block_table.size()) >= needed, "block table too short");
    for (const int32_t block : sequence.block_table) {
        require(block >= 0 && block < kv_[0].num_blocks(), "block id outside the pool");
    }
    require(sequence.window_tables.size() + 1 == kv_.size(), "number of window tables");
    for (size_t pool = 1; pool < kv_.size(); ++pool) {
        const std::span<const int32_t> table = sequence.table(pool);
        require(static_cast<int64_t>(table.size()) >= needed, "window table too short");
        const int64_t oldest = std::max<int64_t>(0, sequence.context - kv_.window(pool) + 1);
        for (int64_t i = 0; i < static_cast<int64_t>(table.size()); ++i) {
            const int32_t block = table[static_cast<size_t>(i)];
            require(block >= -1 && block < kv_[pool].num_blocks(),
                    "block id outside a window's pool");
            require(block >= 0 || i < oldest / kBlockTokens || i >= needed,
                    "block within a window is gone");
        }
    }
}

void Executor::validate_states(const Batch& batch) const {
    if (program_.state_layers.empty()) {
        for (const SequenceSlice& sequence : batch.sequences) {
            require(sequence.state_source == -1 && sequence.state_destination == -1,
                    "states of a model that has none");
        }
        return;
    }
    enum class Use : uint8_t { None, Read, Written };
    std::vector<Use> uses(static_cast<size_t>(slots_.num_slots()), Use::None);
    const auto exists = [&](int32_t slot) { return slot >= 0 && slot < slots_.num_slots(); };
    for (const SequenceSlice& sequence : batch.sequences) {
        require(exists(sequence.state_destination), "no slot for a sequence's states");
        Use& use = uses[static_cast<size_t>(sequence.state_destination)];
        require(use == Use::None, "two sequences leave their states in one slot");
        use = Use::Written;
    }
    for (const SequenceSlice& sequence : batch.sequences) {
        const int32_t source = sequence.state_source;
        require((source == -1) == (sequence.context == 0),
                "a sequence that goes on has states, and one that begins has none");
        require(source == -1 || exists(source), "states in a slot that doesn't exist");
        require(source == -1 || source == sequence.state_destination ||
                    uses[static_cast<size_t>(source)] != Use::Written,
                "a sequence leaves its states where another's are read");
    }
}

void Executor::validate_copies(std::span<const BlockCopy> copies, size_t pool) const {
    const int64_t blocks = kv_[pool].num_blocks();
    for (const auto& [source, destination] : copies) {
        require(source >= 0 && source < blocks && destination >= 0 && destination < blocks,
                "copy outside the pool");
    }
}

void Executor::validate(const Batch& batch) const {
    const auto num_tokens = static_cast<int64_t>(batch.tokens.size());
    require(num_tokens > 0 && num_tokens <= options_.max_batch_tokens, "number of tokens");
    const int64_t token_rows = embedding_rows(EmbedBy::Token);
    for (const int32_t token : batch.tokens) {
        require(token >= 0 && token < token_rows, "token id outside the vocabulary");
    }
    require(static_cast<int64_t>(batch.given.size()) == num_tokens * given_width(),
            "rows that are given");
    const int64_t positions = embedding_rows(EmbedBy::Position);
    const int64_t segments = embedding_rows(EmbedBy::Segment);
    int64_t next = 0;
    for (const SequenceSlice& sequence : batch.sequences) {
        require(sequence.first_token == next && sequence.tokens > 0,
                "sequences must tile the tokens");
        next += sequence.tokens;
        require(sequence.context >= 0, "context");
        require(sequence.context + sequence.tokens <= positions, "position without an embedding");
        require(sequence.adapter == -1 || has_adapter(sequence.adapter), "unknown adapter");
        require(segments >= (sequence.second_segment < 0 ? 1 : 2), "segment without an embedding");
        validate_tables(sequence);
    }
    require(next == num_tokens, "sequences must tile the tokens");
    validate_states(batch);
    validate_copies(batch.copies, 0);
    require(batch.window_copies.size() < kv_.size(), "copies in a pool that doesn't exist");
    for (size_t i = 0; i < batch.window_copies.size(); ++i) {
        validate_copies(batch.window_copies[i], 1 + i);
    }
    require(vocab_size_ > 0 || (batch.samples.empty() && batch.scores.empty()),
            "an encoder has no logits");
    for (const PoolingJob& job : batch.pooling) {
        require(job.first >= 0 && job.count > 0 && job.first + job.count <= num_tokens,
                "pooled token index");
        const int64_t width = program_.buffer_widths[static_cast<size_t>(program_.state)];
        require(job.carry.empty() || (!job.each && static_cast<int64_t>(job.carry.size()) == width),
                "length of a sum to add to");
    }
    for (const SampleJob& job : batch.samples) {
        require(job.token >= 0 && job.token < num_tokens, "sampled token index");
    }
    for (const ScoreJob& job : batch.scores) {
        require(job.token >= 0 && job.token < num_tokens, "scored token index");
        require(job.target >= 0 && job.target < vocab_size_, "scored token id");
    }
}

BatchResult Executor::execute(const Batch& batch) {
    return execute(batch, nullptr);
}

BatchResult Executor::execute(const Batch& batch, std::map<std::string, StageTimes>& profile) {
    std::vector<StageProfile> profiles(static_cast<size_t>(threads_.size()));
    BatchResult result = execute(batch, &profiles);
    for (const StageProfile& of_thread : profiles) {
        for (const auto& [name, times] : of_thread) {
            StageTimes& total = profile[std::string(name)];
            total.work_seconds += times.work_seconds;
            total.wait_seconds += times.wait_seconds;
            total.bytes += times.bytes;
            total.operations += times.operations;
            total.calls += times.calls;
        }
    }
    return result;
}

BatchResult Executor::execute(const Batch& batch, std::vector<StageProfile>* profiles) {
    validate(batch);
    const auto copy = [&](size_t pool, std::span<const BlockCopy> copies) {
        for (const auto& [source, destination] : copies) kv_[pool].copy_block(source, destination);
    };
    copy(0, batch.copies);
    for (size_t i = 0; i < batch.window_copies.size(); ++i) copy(1 + i, batch.window_copies[i]);

    BatchResult result = unfilled_result(batch);
    Run run(batch, result, profiles, threads_.size(), adapters_);
    reserve_for_attention(run);
    reserve_for_adapters(run);
    const auto rows = static_cast<int64_t>(batch.tokens.size());
    threads_.run([&](int thread) {
        share(run, thread, {"rope angles"}, rows, kRowTile,
              [&](int64_t begin, int64_t end) { fill_angles(run, begin, end); });
        run_plan(body_, run, rows, run.adapted(rows, [](int64_t row) { return row; }), thread);
        run_tail(run, thread);
        run_head(run, thread);
        run_pooling(run, thread);
    });
    return result;
}

BatchResult Executor::unfilled_result(const Batch& batch) const {
    BatchResult result;
    result.samples.resize(batch.samples.size());
    result.scores.resize(batch.scores.size());
    const int64_t state_width = program_.buffer_widths[static_cast<size_t>(program_.state)];
    for (const PoolingJob& job : batch.pooling) {
        result.pooled.push_back(job.carry);
        const int64_t states = job.each ? job.count : 1;
        result.pooled.back().resize(static_cast<size_t>(states * state_width), 0.0);
    }
    return result;
}

void Executor::reserve_for_attention(Run& run) {
    size_t workspace = 0;
    size_t scratch = 0;
    for (const Stage& stage : body_.plan.stages) {
        const auto* attention = std::get_if<AttentionStage>(&stage);
        if (attention == nullptr) continue;
        workspace = std::max(workspace, attention_work(run, *attention).workspace_floats);
        const KVLayer& layer = kv_.layer(attention->op.layer);
        const int64_t group = attention->shape.heads / layer.kv_heads;
        const int64_t tile = attention_tile(layer, group);
        scratch = std::max(scratch, kernels_.token.attend_scratch(layer, attention->shape, tile) +
                                        2 * partial_floats(tile * group, layer.value_dim));
    }
    if (split_workspace_.size() < workspace) split_workspace_.resize(workspace);
    for (std::vector<float>& floats : thread_scratch_) {
        if (floats.size() < scratch) floats.resize(scratch);
    }
}

void Executor::run_plan(Storage& storage, Run& run, int64_t rows,
                        std::span<const AdaptedRows> adapted, int thread) {
    for (const Stage& stage : storage.plan.stages) {
        if (const auto* row_stage = std::get_if<RowStage>(&stage)) {
            // As few pieces as balance the threads: a piece costs a pass over the norm weights.
            const int64_t tiles = (rows + kRowTile - 1) / kRowTile;
            const int64_t piece =
                std::max<int64_t>(1, tiles / (kPiecesPerThread * threads_.size())) * kRowTile;
            share(run, thread, {row_stage->name}, rows, piece, [&](int64_t begin, int64_t end) {
                run_rows(*row_stage, storage, run, begin, end);
            });
        } else if (const auto* linear = std::get_if<LinearStage>(&stage)) {
            // Kernels take two panels at once.
            const int64_t pairs = linear->panels / (2 * kPiecesPerThread * threads_.size());
            const int64_t piece = pairs > 0 ? 2 * pairs : 1;
            const StageCost cost{linear->name, linear->weight_bytes,
                                 linear->operations_per_row * static_cast<double>(rows)};
            if (weight_stream_ && thread == 0) {
                weight_stream_->reach(weights_.matrix(linear->parts.front().op.weight).data);
            }
            reduce_for_adapters(*linear, storage, run, rows, adapted, thread);
            share(run, thread, cost, linear->panels, piece, [&](int64_t begin, int64_t end) {
                run_linear(*linear, storage, rows, adapted, begin, end);
            });
        } else if (const auto* sequences = std::get_if<SequenceStage>(&stage)) {
            const auto number = static_cast<int64_t>(run.batch.sequences.size());
            const StageCost cost{sequences->name,
                                 sequences->state_bytes * static_cast<double>(number),
                                 sequences->operations_per_row * static_cast<double>(rows)};
            share(run, thread, cost, number * sequences->pieces, 1,
                  [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) {
                          run_sequence(*sequences, storage, run, i);
                      }
                  });
        } else if (const auto* experts = std::get_if<ExpertsStage>(&stage)) {
            run_experts(*experts, storage, run, rows, thread);
        } else {
            const auto& attention = std::get<AttentionStage>(stage);
            AttentionWork& planned = attention_work(run, attention);
            const StageCost cost{attention.name, planned.kv_bytes, planned.operations};
            const auto total = static_cast<int64_t>(planned.pieces.size());
            share(run, thread, cost, total, 1, [&](int64_t piece, int64_t /*end*/, int64_t after) {
                const auto [begin, end] = planned.pieces[static_cast<size_t>(piece)];
                const int32_t next =
                    after < total ? planned.pieces[static_cast<size_t>(after)].begin : -1;
                for (int32_t i = begin; i < end; ++i) {
                    run_attention(attention, planned, storage, run, i, i + 1 < end ? i + 1 : next,
                                  thread);
                }
            });
        }
    }
}

std::span<std::byte> Executor::block(size_t kind, int64_t index) {
    const bool is_slot = kind == kv_.size() && slots_.num_slots() > 0;
    if (kind >= kv_.size() && !is_slot) throw std::out_of_range("there is no such pool");
    const int64_t count = is_slot ? slots_.num_slots() : kv_[kind].num_blocks();
    if (index < 0 || index >= count) throw std::out_of_range("there is no such block");
    return is_slot ? slots_.slot(index) : kv_[kind].block(index);
}

std::vector<size_t> Executor::block_bytes() const {
    std::vector<size_t> bytes;
    for (size_t pool = 0; pool < kv_.size(); ++pool) bytes.push_back(kv_[pool].block_bytes());
    if (slots_.num_slots() > 0) bytes.push_back(slots_.slot_bytes());
    return bytes;
}

}  // namespace caudal
