// Attention, and the rotations that tell it where tokens are; explained in
// src/caudal/models/program/attention.py.
#pragma once

#include <cstdint>
#include <tuple>

#include "kernels/token_ops.h"
#include "runtime/op_fields.h"

namespace caudal {

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
    bool chunked;
    float softcap;
    int sinks = -1;

    AttentionShape shape() const { return {heads, scale, window, causal, softcap, chunked}; }

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
                          field<FieldKind::Value>("chunked", &AttentionOp::chunked),
                          field<FieldKind::Value>("softcap", &AttentionOp::softcap),
                          optional_field<FieldKind::Vector>("sinks", &AttentionOp::sinks));
    }
};

}  // namespace caudal
