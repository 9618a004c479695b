// What keeps a state of a sequence: each operation is a stage of its own.
#include <utility>

#include "runtime/planner.h"

namespace caudal {

void Planner::check_shapes(const CausalConvOp& op) const {
    const auto weights = static_cast<int64_t>(weights_.vector(op.weight).size());
    const int64_t channels = width(op.x);
    require(width(op.out) == channels && op.out != op.x, "place for a convolution");
    require(weights % channels == 0 && weights >= 2 * channels, "convolution's weight length");
    require(op.bias < 0 || static_cast<int64_t>(weights_.vector(op.bias).size()) == channels,
            "bias length");
    require(op.activation != Activation::ClampedSwiglu, "activation: one for gates");
    require_state(op.layer, weights - channels);
}

void Planner::check_shapes(const GatedDeltaOp& op) const {
    const int64_t heads = width(op.decay);
    require(width(op.beta) == heads && op.key_heads > 0 && heads % op.key_heads == 0,
            "number of delta heads");
    require(width(op.v) % (heads * kStatePanel) == 0, "size of delta heads");
    require(width(op.q) % op.key_heads == 0 && width(op.k) == width(op.q), "key width");
    require(width(op.out) == width(op.v), "value width");
    require(op.out != op.q && op.out != op.k && op.out != op.v && op.out != op.decay &&
                op.out != op.beta,
            "place for values");
    require_state(op.layer, width(op.v) * (width(op.q) / op.key_heads));
}

void Planner::check_shapes(const Mamba2Op& op) const {
    const int64_t heads = width(op.dt);
    require(width(op.decay) == heads && op.groups > 0 && heads % op.groups == 0,
            "number of Mamba heads");
    require(static_cast<int64_t>(weights_.vector(op.skip).size()) == heads, "skip length");
    require(width(op.x) % (heads * kStatePanel) == 0, "size of Mamba heads");
    require(width(op.b) % op.groups == 0 && width(op.c) == width(op.b), "state width");
    require(width(op.out) == width(op.x), "value width");
    require(
        op.out != op.x && op.out != op.b && op.out != op.c && op.out != op.dt && op.out != op.decay,
        "place for values");
    require_state(op.layer, width(op.x) * (width(op.b) / op.groups));
}

void Planner::require_state(int layer, int64_t floats) const {
    require(program_.state_layers.at(static_cast<size_t>(layer)) == floats, "size of a state");
}

template <class AnyOp>
SequenceStage& Planner::append_sequence(const char* name, const AnyOp& op, int64_t pieces,
                                        size_t operations) {
    SequenceStage stage{name, op, op.layer, pieces, {}};
    stage.operations_per_row = static_cast<double>(operations);
    stage.state_bytes = 2.0 * sizeof(float) *
                        static_cast<double>(program_.state_layers[static_cast<size_t>(op.layer)]);
    return std::get<SequenceStage>(plan_.stages.emplace_back(std::move(stage)));
}

void Planner::append(const CausalConvOp& op) {
    const std::vector<float>& weight = weights_.vector(op.weight);
    const auto channels = static_cast<size_t>(width(op.x));
    const size_t taps = weight.size() / channels;
    SequenceStage& stage = append_sequence(
        "convolution", op, (width(op.x) + kConvolutionPiece - 1) / kConvolutionPiece,
        2 * weight.size());
    for (size_t tap = 0; tap < taps; ++tap) {
        for (size_t channel = 0; channel < channels; ++channel) {
            stage.taps.push_back(weight[channel * taps + tap]);
        }
    }
}

void Planner::append(const GatedDeltaOp& op) {
    const int64_t heads = width(op.decay);
    const int64_t state = width(op.v) * (width(op.q) / op.key_heads);
    append_sequence("gated delta", op, heads * state_pieces(width(op.v) / heads),
                    static_cast<size_t>(7 * state));
}

void Planner::append(const Mamba2Op& op) {
    const int64_t heads = width(op.dt);
    const int64_t state = width(op.x) * (width(op.b) / op.groups);
    append_sequence("Mamba-2", op, heads * state_pieces(width(op.x) / heads),
                    static_cast<size_t>(5 * state));
}

}  // namespace caudal
