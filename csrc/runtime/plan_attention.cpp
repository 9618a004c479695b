// Attention: storing keys and values is done row by row, the rest is a stage of its own.
#include "runtime/planner.h"

namespace caudal {

void Planner::check_shapes(const RopeOp& op) const {
    const auto& table = program_.rope_tables.at(static_cast<size_t>(op.table));
    const auto pairs = static_cast<int64_t>(table.inverse_frequencies.size());
    require(op.head_dim > 0 && width(op.x) % op.head_dim == 0, "rope head size");
    require(op.first >= 0 && op.first <= op.head_dim - 2 * pairs, "rope dimensions");
}

void Planner::check_shapes(const AttentionOp& op) const {
    const auto& kv = program_.kv_layers.at(static_cast<size_t>(op.layer));
    const bool stores = op.k >= 0;
    require(stores != stored_[static_cast<size_t>(op.layer)],
            "number of operations that store a layer");
    require((op.v >= 0) == (stores && !kv.latent), "values of an attention");
    require(!stores || width(op.k) == kv.kv_heads * kv.key_dim, "key width");
    require(op.v < 0 || width(op.v) == kv.kv_heads * kv.value_dim, "value width");
    require(op.heads > 0 && op.heads % kv.kv_heads == 0, "number of query heads per KV head");
    require(width(op.q) == op.heads * kv.key_dim, "query width");
    require(width(op.out) == op.heads * kv.value_dim, "attention width");
    require(op.window >= 0, "window");
    require(!op.chunked || (op.causal && op.window > 0), "chunks");
    require(op.softcap >= 0.0f, "softcap");
    require(op.sinks < 0 || static_cast<int64_t>(weights_.vector(op.sinks).size()) == op.heads,
            "number of attention sinks");
    require(kv.window == 0 || (op.causal && op.window > 0 && op.window <= kv.window),
            "window of a layer that forgets");
}

void Planner::append(const AttentionOp& op) {
    if (op.k >= 0) {
        rows().ops.emplace_back(StoreKVOp{op.k, op.v, op.layer});
        stored_[static_cast<size_t>(op.layer)] = true;
    }
    plan_.stages.emplace_back(AttentionStage{"attention", op, op.shape()});
}

}  // namespace caudal
