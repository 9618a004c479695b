// The operations of a program, which mirror those of src/caudal/models/program.py: there they are
// explained. Buffers, matrices and vectors are named by index.
//
// Each says its name in Python (kName) and its fields; whether it needs nothing but its row
// (kOnlyItsRow): not the token, its position, or other rows; and, if it is done row by row, what
// profiles call it (kStage). Its shapes are checked in plan.cpp, what it does to a row is in
// executor_stages.cpp.
#pragma once

#include <cstdint>
#include <tuple>
#include <variant>

#include "kernels/routing.h"
#include "kernels/token_ops.h"
#include "runtime/op_fields.h"

namespace caudal {

// What chooses a token's row of an embedding: its id, its position, or which of a pair's texts it
// belongs to (0 or 1).
enum class EmbedBy : uint8_t { Token, Position, Segment };

struct EmbedOp {
    static constexpr const char* kName = "Embed";
    static constexpr const char* kStage = "embed";
    static constexpr bool kOnlyItsRow = false;

    int out;
    int weight;
    float scale;
    EmbedBy by;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::Output>("out", &EmbedOp::out),
                          field<FieldKind::Matrix>("weight", &EmbedOp::weight),
                          field<FieldKind::Value>("scale", &EmbedOp::scale),
                          field<FieldKind::Value>("by", &EmbedOp::by));
    }
};

struct RmsNormOp {
    static constexpr const char* kName = "RMSNorm";
    static constexpr const char* kStage = "norm";
    static constexpr bool kOnlyItsRow = true;

    int out;
    int x;
    int weight = -1;
    int64_t group;
    float eps;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::Output>("out", &RmsNormOp::out),
                          field<FieldKind::Input>("x", &RmsNormOp::x),
                          optional_field<FieldKind::Vector>("weight", &RmsNormOp::weight),
                          field<FieldKind::Value>("group", &RmsNormOp::group),
                          field<FieldKind::Value>("eps", &RmsNormOp::eps));
    }
};

struct LayerNormOp {
    static constexpr const char* kName = "LayerNorm";
    static constexpr const char* kStage = "norm";
    static constexpr bool kOnlyItsRow = true;

    int out;
    int x;
    int weight;
    int bias = -1;
    float eps;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::Output>("out", &LayerNormOp::out),
                          field<FieldKind::Input>("x", &LayerNormOp::x),
                          field<FieldKind::Vector>("weight", &LayerNormOp::weight),
                          optional_field<FieldKind::Vector>("bias", &LayerNormOp::bias),
                          field<FieldKind::Value>("eps", &LayerNormOp::eps));
    }
};

struct LinearOp {
    static constexpr const char* kName = "Linear";
    static constexpr bool kOnlyItsRow = true;

    int out;
    int x;
    int weight;
    int bias = -1;
    bool accumulate;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::Output>("out", &LinearOp::out),
                          field<FieldKind::Input>("x", &LinearOp::x),
                          field<FieldKind::Matrix>("weight", &LinearOp::weight),
                          optional_field<FieldKind::Vector>("bias", &LinearOp::bias),
                          field<FieldKind::Value>("accumulate", &LinearOp::accumulate));
    }
};

struct RopeOp {
    static constexpr const char* kName = "Rope";
    static constexpr const char* kStage = "rope";
    static constexpr bool kOnlyItsRow = false;

    int x;
    int64_t head_dim;
    int64_t first;
    int table;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::InPlace>("x", &RopeOp::x),
                          field<FieldKind::Value>("head_dim", &RopeOp::head_dim),
                          field<FieldKind::Value>("first", &RopeOp::first),
                          field<FieldKind::RopeTable>("table", &RopeOp::table));
    }
};

struct AttentionOp {
    static constexpr const char* kName = "Attention";
    static constexpr bool kOnlyItsRow = false;

    int out;
    int q;
    int k = -1;  // -1: another operation has stored the layer's keys and values
    int v = -1;
    int layer;
    int64_t heads;
    float scale;
    int64_t window = 0;  // 0: all tokens before a query
    bool causal;
    float softcap;
    int sinks = -1;

    AttentionShape shape() const { return {heads, scale, window, causal, softcap}; }

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::Output>("out", &AttentionOp::out),
                          field<FieldKind::Input>("q", &AttentionOp::q),
                          optional_field<FieldKind::Input>("k", &AttentionOp::k),
                          optional_field<FieldKind::Input>("v", &AttentionOp::v),
                          field<FieldKind::KVLayer>("layer", &AttentionOp::layer),
                          field<FieldKind::Value>("heads", &AttentionOp::heads),
                          field<FieldKind::Value>("scale", &AttentionOp::scale),
                          optional_field<FieldKind::Value>("window", &AttentionOp::window),
                          field<FieldKind::Value>("causal", &AttentionOp::causal),
                          field<FieldKind::Value>("softcap", &AttentionOp::softcap),
                          optional_field<FieldKind::Vector>("sinks", &AttentionOp::sinks));
    }
};

struct ExpertsOp {
    static constexpr const char* kName = "Experts";
    static constexpr bool kOnlyItsRow = true;

    int out;
    int x;
    int logits;
    int gate = -1;
    int up;
    int down;
    int gate_bias = -1;
    int up_bias = -1;
    int down_bias = -1;
    Activation activation;
    float alpha;
    float limit;
    int64_t used;
    Scoring scoring;
    int selection_bias = -1;
    int64_t groups;
    int64_t groups_used;
    int64_t best_of_group;
    bool normalise;
    float scale;
    int expert_scale = -1;
    bool weigh_input;
    bool accumulate;

    static constexpr auto fields() {
        return std::tuple(
            field<FieldKind::Output>("out", &ExpertsOp::out),
            field<FieldKind::Input>("x", &ExpertsOp::x),
            field<FieldKind::InPlace>("logits", &ExpertsOp::logits),
            optional_field<FieldKind::Experts>("gate", &ExpertsOp::gate),
            field<FieldKind::Experts>("up", &ExpertsOp::up),
            field<FieldKind::Experts>("down", &ExpertsOp::down),
            optional_field<FieldKind::Vector>("gate_bias", &ExpertsOp::gate_bias),
            optional_field<FieldKind::Vector>("up_bias", &ExpertsOp::up_bias),
            optional_field<FieldKind::Vector>("down_bias", &ExpertsOp::down_bias),
            field<FieldKind::Value>("activation", &ExpertsOp::activation),
            field<FieldKind::Value>("alpha", &ExpertsOp::alpha),
            field<FieldKind::Value>("limit", &ExpertsOp::limit),
            field<FieldKind::Value>("used", &ExpertsOp::used),
            field<FieldKind::Value>("scoring", &ExpertsOp::scoring),
            optional_field<FieldKind::Vector>("selection_bias", &ExpertsOp::selection_bias),
            field<FieldKind::Value>("groups", &ExpertsOp::groups),
            field<FieldKind::Value>("groups_used", &ExpertsOp::groups_used),
            field<FieldKind::Value>("best_of_group", &ExpertsOp::best_of_group),
            field<FieldKind::Value>("normalise", &ExpertsOp::normalise),
            field<FieldKind::Value>("scale", &ExpertsOp::scale),
            optional_field<FieldKind::Vector>("expert_scale", &ExpertsOp::expert_scale),
            field<FieldKind::Value>("weigh_input", &ExpertsOp::weigh_input),
            field<FieldKind::Value>("accumulate", &ExpertsOp::accumulate));
    }
};

struct GatedOp {
    static constexpr const char* kName = "Gated";
    static constexpr const char* kStage = "activation";
    static constexpr bool kOnlyItsRow = true;

    int out;
    int gate;
    int up;
    Activation activation;
    float alpha;
    float limit;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::Output>("out", &GatedOp::out),
                          field<FieldKind::Input>("gate", &GatedOp::gate),
                          field<FieldKind::Input>("up", &GatedOp::up),
                          field<FieldKind::Value>("activation", &GatedOp::activation),
                          field<FieldKind::Value>("alpha", &GatedOp::alpha),
                          field<FieldKind::Value>("limit", &GatedOp::limit));
    }
};

struct ActivateOp {
    static constexpr const char* kName = "Activate";
    static constexpr const char* kStage = "activation";
    static constexpr bool kOnlyItsRow = true;

    int x;
    Activation activation;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::InPlace>("x", &ActivateOp::x),
                          field<FieldKind::Value>("activation", &ActivateOp::activation));
    }
};

struct AddOp {
    static constexpr const char* kName = "Add";
    static constexpr const char* kStage = "add";
    static constexpr bool kOnlyItsRow = true;

    int out;
    int a;
    int b;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::Output>("out", &AddOp::out),
                          field<FieldKind::Input>("a", &AddOp::a),
                          field<FieldKind::Input>("b", &AddOp::b));
    }
};

struct SoftcapOp {
    static constexpr const char* kName = "Softcap";
    static constexpr const char* kStage = "softcap";
    static constexpr bool kOnlyItsRow = true;

    int x;
    float cap;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::InPlace>("x", &SoftcapOp::x),
                          field<FieldKind::Value>("cap", &SoftcapOp::cap));
    }
};

struct L2NormOp {
    static constexpr const char* kName = "L2Norm";
    static constexpr const char* kStage = "norm";
    static constexpr bool kOnlyItsRow = true;

    int out;
    int x;
    int64_t group;
    float eps;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::Output>("out", &L2NormOp::out),
                          field<FieldKind::Input>("x", &L2NormOp::x),
                          field<FieldKind::Value>("group", &L2NormOp::group),
                          field<FieldKind::Value>("eps", &L2NormOp::eps));
    }
};

struct ColumnsOp {
    static constexpr const char* kName = "Columns";
    static constexpr const char* kStage = "columns";
    static constexpr bool kOnlyItsRow = true;

    int out;
    int x;
    int64_t first;
    int64_t period;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::Output>("out", &ColumnsOp::out),
                          field<FieldKind::Input>("x", &ColumnsOp::x),
                          field<FieldKind::Value>("first", &ColumnsOp::first),
                          field<FieldKind::Value>("period", &ColumnsOp::period));
    }
};

struct ScaleOp {
    static constexpr const char* kName = "Scale";
    static constexpr const char* kStage = "scale";
    static constexpr bool kOnlyItsRow = true;

    int x;
    float factor;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::InPlace>("x", &ScaleOp::x),
                          field<FieldKind::Value>("factor", &ScaleOp::factor));
    }
};

struct ScaleByOp {
    static constexpr const char* kName = "ScaleBy";
    static constexpr const char* kStage = "scale";
    static constexpr bool kOnlyItsRow = true;

    int x;
    int weight;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::InPlace>("x", &ScaleByOp::x),
                          field<FieldKind::Vector>("weight", &ScaleByOp::weight));
    }
};

struct ShiftByOp {
    static constexpr const char* kName = "ShiftBy";
    static constexpr const char* kStage = "shift";
    static constexpr bool kOnlyItsRow = true;

    int x;
    int weight;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::InPlace>("x", &ShiftByOp::x),
                          field<FieldKind::Vector>("weight", &ShiftByOp::weight));
    }
};

struct ClampOp {
    static constexpr const char* kName = "Clamp";
    static constexpr const char* kStage = "clamp";
    static constexpr bool kOnlyItsRow = true;

    int x;
    float low;
    float high;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::InPlace>("x", &ClampOp::x),
                          field<FieldKind::Value>("low", &ClampOp::low),
                          field<FieldKind::Value>("high", &ClampOp::high));
    }
};

struct PositionScaleOp {
    static constexpr const char* kName = "PositionScale";
    static constexpr const char* kStage = "scale";
    static constexpr bool kOnlyItsRow = false;

    int x;
    double scale;
    int64_t length;
    int64_t offset;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::InPlace>("x", &PositionScaleOp::x),
                          field<FieldKind::Value>("scale", &PositionScaleOp::scale),
                          field<FieldKind::Value>("length", &PositionScaleOp::length),
                          field<FieldKind::Value>("offset", &PositionScaleOp::offset));
    }
};

struct CausalConvOp {
    static constexpr const char* kName = "CausalConv";
    static constexpr bool kOnlyItsRow = false;

    int out;
    int x;
    int weight;
    int bias = -1;
    int layer;
    Activation activation;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::Output>("out", &CausalConvOp::out),
                          field<FieldKind::Input>("x", &CausalConvOp::x),
                          field<FieldKind::Vector>("weight", &CausalConvOp::weight),
                          optional_field<FieldKind::Vector>("bias", &CausalConvOp::bias),
                          field<FieldKind::StateLayer>("layer", &CausalConvOp::layer),
                          field<FieldKind::Value>("activation", &CausalConvOp::activation));
    }
};

struct GatedDeltaOp {
    static constexpr const char* kName = "GatedDelta";
    static constexpr bool kOnlyItsRow = false;

    int out;
    int q;
    int k;
    int v;
    int decay;
    int beta;
    int layer;
    int64_t key_heads;
    bool tiled;
    float scale;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::Output>("out", &GatedDeltaOp::out),
                          field<FieldKind::Input>("q", &GatedDeltaOp::q),
                          field<FieldKind::Input>("k", &GatedDeltaOp::k),
                          field<FieldKind::Input>("v", &GatedDeltaOp::v),
                          field<FieldKind::Input>("decay", &GatedDeltaOp::decay),
                          field<FieldKind::Input>("beta", &GatedDeltaOp::beta),
                          field<FieldKind::StateLayer>("layer", &GatedDeltaOp::layer),
                          field<FieldKind::Value>("key_heads", &GatedDeltaOp::key_heads),
                          field<FieldKind::Value>("tiled", &GatedDeltaOp::tiled),
                          field<FieldKind::Value>("scale", &GatedDeltaOp::scale));
    }
};

struct Mamba2Op {
    static constexpr const char* kName = "Mamba2";
    static constexpr bool kOnlyItsRow = false;

    int out;
    int x;
    int b;
    int c;
    int dt;
    int decay;
    int skip;
    int layer;
    int64_t groups;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::Output>("out", &Mamba2Op::out),
                          field<FieldKind::Input>("x", &Mamba2Op::x),
                          field<FieldKind::Input>("b", &Mamba2Op::b),
                          field<FieldKind::Input>("c", &Mamba2Op::c),
                          field<FieldKind::Input>("dt", &Mamba2Op::dt),
                          field<FieldKind::Input>("decay", &Mamba2Op::decay),
                          field<FieldKind::Vector>("skip", &Mamba2Op::skip),
                          field<FieldKind::StateLayer>("layer", &Mamba2Op::layer),
                          field<FieldKind::Value>("groups", &Mamba2Op::groups));
    }
};

struct HeadLinearOp {
    static constexpr const char* kName = "HeadLinear";
    static constexpr bool kOnlyItsRow = true;

    int out;
    int x;
    int weight;
    int64_t heads;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::Output>("out", &HeadLinearOp::out),
                          field<FieldKind::Input>("x", &HeadLinearOp::x),
                          field<FieldKind::Matrix>("weight", &HeadLinearOp::weight),
                          field<FieldKind::Value>("heads", &HeadLinearOp::heads));
    }
};

struct JoinOp {
    static constexpr const char* kName = "Join";
    static constexpr const char* kStage = "join";
    static constexpr bool kOnlyItsRow = true;

    int out;
    int a;
    int b;
    int64_t heads;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::Output>("out", &JoinOp::out),
                          field<FieldKind::Input>("a", &JoinOp::a),
                          field<FieldKind::Input>("b", &JoinOp::b),
                          field<FieldKind::Value>("heads", &JoinOp::heads));
    }
};

// Any operation that is done row by row, or one of `Others`.
template <class... Others>
using RowOpOr = std::variant<EmbedOp, RmsNormOp, LayerNormOp, RopeOp, GatedOp, ActivateOp, AddOp,
                             SoftcapOp, L2NormOp, ColumnsOp, ScaleOp, ScaleByOp, ShiftByOp, ClampOp,
                             PositionScaleOp, JoinOp, Others...>;

// Those that go through a sequence's tokens in order, and keep a state.
using SequenceOp = std::variant<CausalConvOp, GatedDeltaOp, Mamba2Op>;

using Op =
    RowOpOr<LinearOp, HeadLinearOp, AttentionOp, CausalConvOp, GatedDeltaOp, Mamba2Op, ExpertsOp>;

}  // namespace caudal
