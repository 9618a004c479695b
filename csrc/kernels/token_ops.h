// What happens to each token on its own between linear layers, and attention over the paged KV
// pool.
//
// All of these are batch-invariant by construction: a token's (a query's) result is computed by the
// same operations in the same order whatever else is in the batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace caudal {

enum class Activation : uint8_t {
    Silu = 0,
    GeluTanh = 1,
    Gelu = 2,
    Relu = 3,
    Tanh = 4,
    ReluSquared = 5,
    Sigmoid = 6,
    Softplus = 7,
    Exp = 8,
    // For gates alone:
    None = 9,
    ClampedSwiglu = 10,
};

// What a gate does: factor(gate) · up, with an activation as the factor. Of ClampedSwiglu, the
// factor is g · σ(alpha · g), g = min(gate, limit), and up is clamped to ±limit, plus 1 (gpt-oss).
struct Gate {
    Activation activation = Activation::Silu;
    float alpha = 1.702f;
    float limit = 7.0f;
};

// Q8: bytes with a scale for each token's key, and its value, of each KV head.
enum class KVType : uint8_t { F16 = 0, F32 = 1, Q8 = 2 };

constexpr int64_t element_bytes(KVType type) {
    switch (type) {
        case KVType::F16:
            return 2;
        case KVType::F32:
            return 4;
        case KVType::Q8:
            return 1;
    }
    return 0;
}

// Tokens per KV block. 16 lets a block's keys of one channel fill two vectors exactly.
constexpr int64_t kBlockTokens = 16;
// Keys per attention partition: partial results of partitions, at fixed absolute positions, are
// merged in order, so that one long sequence can use all threads and still give the same bits.
constexpr int64_t kPartitionTokens = 256;

// Channels that share a scale, at most: their products with 16-bit numbers are summed up in 32
// bits.
constexpr int64_t kMostScaledChannels = 512;

// Where one layer's keys and values live. Within a block and KV head, keys are [channel][token] (a
// dot product then needs no horizontal sum) and values are [token][channel].
//
// A latent layer (MLA, arXiv 2405.04434) has no values: they are the first channels of its keys.
//
// Q8 keeps four neighbours that are summed up side by side, as dot products of bytes take them:
// keys are [channel / 4][token][4], values [token / 4][channel][4], each 128 more than the number
// it stands for, and behind the keys are two vectors of bfloat16 scales, one for each token: of
// keys and of values, or of a latent's first channels and of its others.
struct KVLayer {
    std::byte* keys = nullptr;    // of block 0 and KV head 0
    std::byte* values = nullptr;  // the same; latent: null
    int64_t block_stride = 0;     // elements from one block to the next
    int64_t key_stride = 0;       // elements from one KV head's keys to the next's
    int64_t value_stride = 0;
    KVType type = KVType::F16;
    int64_t kv_heads = 0;
    int64_t key_dim = 0;    // channels of a head
    int64_t value_dim = 0;  // fewer than key_dim where there are no values

    // A layer that begins at `begin` in block 0. How far it is to the next block, `block_stride`,
    // depends on what else is in a block: without anything it is `block_elements`.
    static KVLayer at(std::byte* begin, KVType type, int64_t kv_heads, int64_t key_dim,
                      int64_t value_dim, bool latent) {
        KVLayer layer;
        layer.type = type;
        layer.kv_heads = kv_heads;
        layer.key_dim = key_dim;
        layer.value_dim = value_dim;
        layer.keys = begin;
        const int64_t keys = key_dim * kBlockTokens;
        const int64_t values = latent ? 0 : value_dim * kBlockTokens;
        if (type == KVType::Q8) {
            layer.key_stride = layer.value_stride = keys + kScaleBytes + values;
            if (!latent) layer.values = begin + keys + kScaleBytes;
        } else {
            layer.key_stride = keys;
            layer.value_stride = values;
            if (!latent) layer.values = begin + kv_heads * keys * element_bytes(type);
        }
        layer.block_stride = layer.block_elements();
        return layer;
    }

    bool latent() const { return values == nullptr; }
    // Elements of one block.
    int64_t block_elements() const {
        return kv_heads * (type == KVType::Q8 ? key_stride : key_stride + value_stride);
    }
    // Bytes of one token.
    int64_t token_bytes() const { return block_elements() * element_bytes(type) / kBlockTokens; }
    // Where a block's keys, or values, of a KV head begin, in elements.
    int64_t key_offset(int64_t block, int64_t kv_head) const {
        return block * block_stride + kv_head * key_stride;
    }
    int64_t value_offset(int64_t block, int64_t kv_head) const {
        return block * block_stride + kv_head * value_stride;
    }

    static constexpr int64_t kScaleBytes = 2 * kBlockTokens * 2;
};

struct AttentionShape {
    int64_t heads = 0;     // query heads, a multiple of the layer's kv_heads
    float scale = 1.0f;    // multiplies q · k
    int64_t window = 0;    // a query sees itself and window - 1 tokens before it; 0: all of them
    bool causal = true;    // false: a query sees all of its sequence, which is in one batch then;
                           // with a window window / 2 tokens before it and as many after it
    float softcap = 0.0f;  // scores become softcap · tanh(score / softcap); 0: they stay
    bool chunked = false;  // positions are cut into chunks of `window`; a query sees what is before
                           // it in its own

    // The first position that a query sees.
    int64_t oldest_seen(int64_t position) const {
        if (window == 0) return 0;
        if (chunked) return position - position % window;
        return std::max<int64_t>(0, position - (causal ? window - 1 : window / 2));
    }
    // One past the last position that a query sees of a sequence of `known` tokens.
    int64_t seen_end(int64_t position, int64_t known) const {
        if (causal) return position + 1;
        return window > 0 ? std::min(known, position + window / 2 + 1) : known;
    }
};

// Where another call of `attend` will begin to read, for who asks for its memory ahead of time. No
// blocks: nowhere.
struct AttentionStart {
    int64_t kv_head = 0;
    int64_t position = 0;
    std::span<const int32_t> block_table;
};

// Queries of one sequence: token i of `tokens` is at position `first_position + i`; its vector
// starts at `queries + i * query_stride` as [heads][key_dim], or at `queries + offsets[i]` where
// there are offsets (queries of several sequences, on a partition that is in the past of all).
struct AttentionQueries {
    const float* queries = nullptr;
    int64_t query_stride = 0;
    int64_t tokens = 0;
    int64_t first_position = 0;
    std::span<const int32_t> block_table;  // has the blocks of all positions that a query sees
    std::span<const int64_t> offsets;

    const float* vector(int64_t query) const {
        return queries +
               (offsets.empty() ? query * query_stride : offsets[static_cast<size_t>(query)]);
    }

    // The first position of a partition that query `first_query` or one after it sees.
    AttentionStart start(const AttentionShape& shape, int64_t kv_head, int64_t first_query,
                         int64_t partition) const {
        return {
            kv_head,
            std::max(partition * kPartitionTokens, shape.oldest_seen(first_position + first_query)),
            block_table};
    }
};

// The unnormalised result of one partition for `tokens` queries and the heads of one KV head: rows
// are [token][head in group]; maximum, sum of weights, weighted values.
struct AttentionPartial {
    float* maximum = nullptr;   // [rows]
    float* sum = nullptr;       // [rows]
    float* weighted = nullptr;  // [rows][value_dim]
};

struct TokenKernels {
    // out = x / sqrt(mean(x²) + eps) · weight, for `groups` consecutive vectors of `width` floats.
    // The weight is for one of them, or several: then it goes from group to group, and begins anew
    // at its end. Empty: without.
    void (*rms_norm)(const float* x, std::span<const float> weight, float* out, int64_t groups,
                     int64_t width, float eps);

    // out = x / sqrt(Σx² + eps), for `groups` consecutive vectors of `width` floats.
    void (*l2_norm)(const float* x, float* out, int64_t groups, int64_t width, float eps);

    // out = (x - mean(x)) / sqrt(variance(x) + eps) · weight + bias (LayerNorm, arXiv 1607.06450).
    // Without bias (null) nothing is added.
    void (*layer_norm)(const float* x, const float* weight, const float* bias, float* out,
                       int64_t width, float eps);

    // Rotates the first 2 · pairs channels of each of `heads` vectors of `head_dim` floats in place
    // (RoPE, arXiv 2104.09864). `interleaved`: channel 2i pairs with 2i + 1; otherwise i with
    // i + pairs.
    void (*rope)(float* x, int64_t heads, int64_t head_dim, int64_t pairs, bool interleaved,
                 const float* cosines, const float* sines);

    // out = factor(gate) · up, each gate for n / gates neighbours.
    void (*gated)(const Gate& kind, const float* gate, int64_t gates, const float* up, float* out,
                  int64_t n);

    // x = activation(x), in place.
    void (*activate)(Activation activation, float* x, int64_t n);

    void (*add)(const float* a, const float* b, float* out, int64_t n);
    // out = out + weight · x
    void (*add_weighted)(const float* x, float weight, float* out, int64_t n);
    void (*scale)(float* x, float factor, int64_t n);
    // x = x · factors
    void (*multiply)(float* x, const float* factors, int64_t n);
    // x = x + by, of one number or n.
    void (*shift)(float* x, std::span<const float> by, int64_t n);
    // x = x within [low, high]
    void (*clamp)(float* x, float low, float high, int64_t n);
    // x = e^x / Σ e^x
    void (*softmax)(float* x, int64_t n);
    // x = cap · tanh(x / cap)
    void (*softcap)(float* x, float cap, int64_t n);

    // Stores the key and value ([kv_heads][channels] each) of token `token` of `block`. A latent
    // layer has no value: null.
    void (*store_kv)(const KVLayer& layer, int64_t block, int64_t token, const float* key,
                     const float* value);

    // Floats of scratch that one call of `attend` needs for `tokens` queries.
    size_t (*attend_scratch)(const KVLayer& layer, const AttentionShape& shape, int64_t tokens);

    // Attention of queries [first_query, first_query + count) of `queries` and the heads of one KV
    // head over the keys of one partition. `next` is where the caller's next call will begin.
    // `again`: the last call with this scratch was for the same queries and another partition.
    void (*attend)(const KVLayer& layer, const AttentionShape& shape,
                   const AttentionQueries& queries, int64_t kv_head, int64_t first_query,
                   int64_t count, int64_t partition, const AttentionStart& next, bool again,
                   float* scratch, const AttentionPartial& out);

    // Merges a later partition's partial into the running one (both of `rows` rows), and the final
    // division by the sum of weights.
    void (*merge_partials)(const AttentionPartial& running, const AttentionPartial& later,
                           int64_t rows, int64_t value_dim);
    void (*normalise)(const KVLayer& layer, const float* weighted, float sum, float* out);

    // Lets a row's softmax have one term more, without a value: e to the power of the `sinks` of
    // its head (attention sinks, arXiv 2309.17453, as gpt-oss learns them). `rows` rows, each token
    // with as many as there are sinks. Done once, after all partitions are merged.
    void (*add_sinks)(const AttentionPartial& running, std::span<const float> sinks, int64_t rows,
                      int64_t value_dim);
};

}  // namespace caudal
