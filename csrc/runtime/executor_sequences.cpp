// What one thread does with an item of a sequence stage: a piece of a recurrent layer's channels or
// heads, over all of one sequence's tokens, in order.
#include <algorithm>

#include "runtime/executor.h"
#include "runtime/run.h"

namespace caudal {

// An item in one thread's hands. No other reads or writes its part of the states.
class Executor::SequenceItem {
  public:
    SequenceItem(Executor& executor, const SequenceStage& stage, const Storage& storage,
                 const SequenceSlice& sequence, int64_t piece)
        : executor_(executor),
          stage_(stage),
          storage_(storage),
          sequence_(sequence),
          piece_(piece),
          destination_(executor.slots_.state(sequence.state_destination, stage.layer)),
          source_(sequence.state_source < 0
                      ? destination_
                      : executor.slots_.state(sequence.state_source, stage.layer)) {}

    void operator()(const CausalConvOp& op) const {
        ConvolutionTokens tokens;
        tokens.tokens = sequence_.tokens;
        tokens.x = inputs(op.x);
        tokens.out = rows(op.out);
        tokens.taps = stage_.taps.data();
        tokens.bias = op.bias < 0 ? nullptr : executor_.weights_.vector(op.bias).data();
        tokens.channels = width(op.x);
        tokens.count = static_cast<int64_t>(stage_.taps.size()) / tokens.channels;
        tokens.activation = op.activation;
        tokens.source = source_.data();
        tokens.destination = destination_.data();
        const int64_t begin = piece_ * kConvolutionPiece;
        const int64_t end = std::min(begin + kConvolutionPiece, tokens.channels);
        if (sequence_.state_source < 0) {
            for (int64_t tap = 0; tap + 1 < tokens.count; ++tap) {
                float* inputs = tokens.destination + tap * tokens.channels;
                std::fill(inputs + begin, inputs + end, 0.0f);
            }
        }
        executor_.kernels_.recurrent.convolve(tokens, begin, end);
    }

    void operator()(const GatedDeltaOp& op) const {
        const int64_t heads = width(op.decay);
        const HeadPanels part(width(op.v) / heads, piece_);
        const int64_t key_head =
            op.tiled ? part.head % op.key_heads : part.head / (heads / op.key_heads);
        DeltaTokens tokens;
        tokens.tokens = sequence_.tokens;
        tokens.key_dim = width(op.q) / op.key_heads;
        tokens.panels = part.panels;
        tokens.scale = op.scale;
        tokens.q = inputs(op.q).from(key_head * tokens.key_dim);
        tokens.k = inputs(op.k).from(key_head * tokens.key_dim);
        tokens.v = inputs(op.v).from(part.first_channel);
        tokens.decay = inputs(op.decay).from(part.head);
        tokens.beta = inputs(op.beta).from(part.head);
        tokens.out = rows(op.out).from(part.first_channel);
        place_states(tokens, part, tokens.key_dim);
        executor_.kernels_.recurrent.gated_delta(tokens);
    }

    void operator()(const Mamba2Op& op) const {
        const int64_t heads = width(op.dt);
        const HeadPanels part(width(op.x) / heads, piece_);
        const int64_t group = part.head / (heads / op.groups);
        SelectiveTokens tokens;
        tokens.tokens = sequence_.tokens;
        tokens.state_dim = width(op.b) / op.groups;
        tokens.panels = part.panels;
        tokens.skip = executor_.weights_.vector(op.skip)[static_cast<size_t>(part.head)];
        tokens.x = inputs(op.x).from(part.first_channel);
        tokens.b = inputs(op.b).from(group * tokens.state_dim);
        tokens.c = inputs(op.c).from(group * tokens.state_dim);
        tokens.dt = inputs(op.dt).from(part.head);
        tokens.decay = inputs(op.decay).from(part.head);
        tokens.out = rows(op.out).from(part.first_channel);
        place_states(tokens, part, tokens.state_dim);
        executor_.kernels_.recurrent.selective_scan(tokens);
    }

  private:
    // The panels of one head that an item has.
    struct HeadPanels {
        // `head_dim`: channels of a head; `piece`: of all heads', one after the other.
        HeadPanels(int64_t head_dim, int64_t piece) {
            const int64_t of_head = head_dim / kStatePanel;
            const int64_t pieces = state_pieces(head_dim);
            head = piece / pieces;
            const int64_t first_panel = piece % pieces * kStatePanelPiece;
            panels = std::min(kStatePanelPiece, of_head - first_panel);
            first_channel = head * head_dim + first_panel * kStatePanel;
        }

        int64_t head;
        int64_t panels;
        int64_t first_channel;  // of all heads'
    };

    // A head's panels lie one after the other, each of `state_rows` rows, and so do heads.
    template <class Tokens>
    void place_states(Tokens& tokens, const HeadPanels& part, int64_t state_rows) const {
        const int64_t offset = part.first_channel * state_rows;
        tokens.source = source_.data() + offset;
        tokens.destination = destination_.data() + offset;
        if (sequence_.state_source < 0) {
            std::fill_n(tokens.destination, part.panels * kStatePanel * state_rows, 0.0f);
        }
    }

    int64_t width(int buffer) const {
        return executor_.program_.buffer_widths[static_cast<size_t>(buffer)];
    }

    TokenRows<const float> inputs(int buffer) const {
        const TokenRows<float> all = rows(buffer);
        return {all.first, all.stride};
    }

    // The sequence's rows of a buffer.
    TokenRows<float> rows(int buffer) const {
        const int64_t stride = executor_.stride(buffer);
        return {
            storage_.buffers[static_cast<size_t>(buffer)].data() + sequence_.first_token * stride,
            stride};
    }

    Executor& executor_;
    const SequenceStage& stage_;
    const Storage& storage_;
    const SequenceSlice& sequence_;
    const int64_t piece_;
    const std::span<float> destination_;
    const std::span<const float> source_;  // of a sequence that begins: the destination, zeroed
};

void Executor::run_sequence(const SequenceStage& stage, Storage& storage, const Run& run,
                            int64_t index) {
    const SequenceSlice& sequence = run.batch.sequences[static_cast<size_t>(index / stage.pieces)];
    std::visit(SequenceItem(*this, stage, storage, sequence, index % stage.pieces), stage.op);
}

}  // namespace caudal
