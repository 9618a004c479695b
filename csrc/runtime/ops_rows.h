// Operations that are done row by row; explained in src/caudal/models/program/rows.py.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

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

struct GivenOp {
    static constexpr const char* kName = "Given";
    static constexpr const char* kStage = "given";
    static constexpr bool kOnlyItsRow = false;

    int out;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::Output>("out", &GivenOp::out));
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

struct LayerNormOp {
    static constexpr const char* kName = "LayerNorm";
    static constexpr const char* kStage = "norm";
    static constexpr bool kOnlyItsRow = true;

    int out;
    int x;
    int weight;
    int bias = -1;
    int64_t group;
    float eps;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::Output>("out", &LayerNormOp::out),
                          field<FieldKind::Input>("x", &LayerNormOp::x),
                          field<FieldKind::Vector>("weight", &LayerNormOp::weight),
                          optional_field<FieldKind::Vector>("bias", &LayerNormOp::bias),
                          field<FieldKind::Value>("group", &LayerNormOp::group),
                          field<FieldKind::Value>("eps", &LayerNormOp::eps));
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

struct GatherOp {
    static constexpr const char* kName = "Gather";
    static constexpr const char* kStage = "columns";
    static constexpr bool kOnlyItsRow = true;

    int out;
    int x;
    std::vector<int32_t> columns;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::Output>("out", &GatherOp::out),
                          field<FieldKind::Input>("x", &GatherOp::x),
                          field<FieldKind::Value>("columns", &GatherOp::columns));
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

struct CutOp {
    static constexpr const char* kName = "Cut";
    static constexpr const char* kStage = "activation";
    static constexpr bool kOnlyItsRow = true;

    int x;
    float deviations;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::InPlace>("x", &CutOp::x),
                          field<FieldKind::Value>("deviations", &CutOp::deviations));
    }
};

struct MatchMagnitudeOp {
    static constexpr const char* kName = "MatchMagnitude";
    static constexpr const char* kStage = "norm";
    static constexpr bool kOnlyItsRow = true;

    int x;
    int model;
    float floor;

    static constexpr auto fields() {
        return std::tuple(field<FieldKind::InPlace>("x", &MatchMagnitudeOp::x),
                          field<FieldKind::Input>("model", &MatchMagnitudeOp::model),
                          field<FieldKind::Value>("floor", &MatchMagnitudeOp::floor));
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

}  // namespace caudal
