// A program cut into stages: the work that threads share between two barriers.
//
// Row operations that follow each other become one stage (a thread takes some tokens through all of
// them while they are in its cache), ending with the conversion of activations that the next linear
// layers read; linear layers with the same input become one stage (q, k, v; gate, up).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "isa/kernel_table.h"
#include "runtime/program.h"
#include "runtime/weights.h"

namespace caudal {

struct StoreKVOp {
    int k;
    int v;
    int layer;
};

using RowOp = std::variant<EmbedOp, RmsNormOp, LayerNormOp, RopeOp, StoreKVOp, GatedOp, ActivateOp,
                           AddOp, SoftcapOp>;

// Quantises a buffer into activation slot `slot` of the plan.
struct Conversion {
    int buffer;
    int slot;
};

struct RowStage {
    std::string name;  // for profiles
    std::vector<RowOp> ops;
    std::vector<Conversion> conversions;
};

struct LinearStage {
    struct Part {
        LinearOp op;
        int slot;             // the activations it reads
        int64_t first_panel;  // of the stage's panels
    };
    std::string name;
    std::vector<Part> parts;
    int64_t panels = 0;
    double weight_bytes = 0;
    double operations_per_row = 0;
};

struct AttentionStage {
    std::string name;
    AttentionOp op;
};

using Stage = std::variant<RowStage, LinearStage, AttentionStage>;

struct ActivationSlot {
    int buffer;
    ActivationKind kind;
};

struct Plan {
    std::vector<Stage> stages;
    std::vector<ActivationSlot> slots;
};

// Throws std::invalid_argument where an operation's buffers, matrices and vectors don't fit
// together.
Plan make_plan(const std::vector<Op>& ops, const Program& program, const Weights& weights,
               const LinearKernels& kernels, bool float_activations);

}  // namespace caudal
