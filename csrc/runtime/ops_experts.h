// Mixtures of experts; explained in src/caudal/models/program/experts.py.
#pragma once

#include <cstdint>
#include <tuple>

#include "kernels/routing.h"
#include "kernels/token_ops.h"
#include "runtime/op_fields.h"

namespace caudal {

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

}  // namespace caudal
