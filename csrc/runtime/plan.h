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

// Floats between rows of buffers: rows a multiple of 2 KiB apart would compete for a few sets of
// the cache.
constexpr int64_t kRowPadding = 16;

// The part of attention that is done row by row.
struct StoreKVOp {
    static constexpr const char* kStage = "store KV";

    int k;
    int v;  // -1: a latent layer, which has none
    int layer;
};

// The parts of experts that are done row by row: choosing them, before they compute, and adding up
// what they computed, behind it.
struct RouteOp {
    static constexpr const char* kStage = "route";

    ExpertsOp op;
};
struct SumExpertsOp {
    static constexpr const char* kStage = "sum experts";

    ExpertsOp op;
};

using RowOp = RowOpOr<StoreKVOp, RouteOp, SumExpertsOp>;

// A buffer, or columns [first, first + cols) of it, in the form that linear layers multiply.
struct ConvertedBuffer {
    int buffer;
    ActivationKind kind;
    int64_t first;
    int64_t cols;

    bool operator==(const ConvertedBuffer&) const = default;
};

struct RowStage {
    std::string name;  // for profiles
    std::vector<RowOp> ops;
    std::vector<int> conversions;  // indices of Plan::activations, done after the operations
};

struct LinearStage {
    struct Part {
        LinearOp op;
        int activations;      // the index in Plan::activations of what it reads
        int64_t first_panel;  // of the stage's panels
        int64_t panels;
        int64_t of_matrix = 0;  // the first of the matrix's panels that this part computes
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
    AttentionShape shape;
};

// Channels of a convolution that one item has.
constexpr int64_t kConvolutionPiece = 256;
// Panels of a head's state that one item has: few enough to stay in a core's first cache while all
// tokens go over them.
constexpr int64_t kStatePanelPiece = 4;

// Items that a head of so many channels, a multiple of kStatePanel, is cut into.
constexpr int64_t state_pieces(int64_t head_dim) {
    return (head_dim / kStatePanel + kStatePanelPiece - 1) / kStatePanelPiece;
}

// An item is a piece of one sequence's channels or heads, over all of its tokens in order.
struct SequenceStage {
    std::string name;
    SequenceOp op;
    int layer;                // of the states
    int64_t pieces;           // of a sequence
    std::vector<float> taps;  // of a convolution: [tap][channel]
    double operations_per_row = 0;
    double state_bytes = 0;  // read and written for a sequence
};

struct ExpertsStage {
    // Floats from one row of what experts compute inside to the next, and their gates' before.
    int64_t inner_stride() const { return inner_width + kRowPadding; }

    ExpertsOp op;
    std::vector<ActivationKind> inputs;  // kinds that gate and up read: one, or two
    size_t gate_input = 0;               // which of them
    size_t up_input = 0;
    ActivationKind inner_kind;  // what down reads
    int64_t inner_width;        // of gate and up side by side
    std::string gather_name;
    std::string inside_name;
    std::string activation_name;
    std::string down_name;
};

using Stage = std::variant<RowStage, LinearStage, AttentionStage, SequenceStage, ExpertsStage>;

struct Plan {
    std::vector<Stage> stages;
    std::vector<ConvertedBuffer> activations;
};

// Operations that run for the same tokens, one after the other.
struct Section {
    const std::vector<Op>& ops;
    std::vector<int> inputs;   // buffers that hold something before
    std::vector<int> outputs;  // buffers that must hold something afterwards
};

// Throws std::invalid_argument where an operation refers to something that doesn't exist, its
// buffers, matrices and vectors don't fit together, or nothing has filled a buffer that it reads.
Plan make_plan(const Section& section, const Program& program, const Weights& weights,
               const LinearKernels& kernels, bool float_activations);

// Adds the buffers that operations read or write to `used`, which has an element for every buffer.
void mark_buffers(const std::vector<Op>& ops, std::vector<bool>& used);

}  // namespace caudal
