// Operations that go through a sequence's tokens in order, and keep a state of it; explained in
// src/caudal/models/program/sequences.py.
#pragma once

#include <cstdint>
#include <tuple>
#include <variant>

#include "kernels/token_ops.h"
#include "runtime/op_fields.h"

namespace caudal {

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

using SequenceOp = std::variant<CausalConvOp, GatedDeltaOp, Mamba2Op>;

}  // namespace caudal
