// Multiplications by weight matrices; explained in src/caudal/models/program/linear.py.
#pragma once

#include <cstdint>
#include <tuple>

#include "runtime/op_fields.h"

namespace caudal {

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

}  // namespace caudal
