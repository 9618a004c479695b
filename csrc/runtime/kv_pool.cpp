#include "runtime/kv_pool.h"

#include <cstring>
#include <stdexcept>

namespace caudal {

namespace {

size_t element_bytes(KVType type) {
    return type == KVType::F32 ? sizeof(float) : 2;
}

size_t block_bytes(const KVLayer& layer) {
    return static_cast<size_t>(layer.kv_heads * layer.head_elements()) * element_bytes(layer.type);
}

}  // namespace

KVPool::KVPool(const std::vector<KVGeometry>& layers, KVType type, int64_t num_blocks)
    : num_blocks_(num_blocks) {
    if (num_blocks <= 0) throw std::invalid_argument("the KV pool needs at least one block");
    for (const KVGeometry& geometry : layers) {
        if (geometry.kv_heads <= 0 || geometry.head_dim <= 0 || geometry.head_dim % 8 != 0) {
            throw std::invalid_argument("attention needs a head size that is a multiple of 8");
        }
        KVLayer layer;
        layer.type = type;
        layer.kv_heads = geometry.kv_heads;
        layer.head_dim = geometry.head_dim;
        const size_t bytes = block_bytes(layer) * static_cast<size_t>(num_blocks);
        memory_.emplace_back(bytes, /*huge_pages=*/false);
        layer.keys = memory_.back().bytes().data();
        memory_.emplace_back(bytes, /*huge_pages=*/false);
        layer.values = memory_.back().bytes().data();
        layers_.push_back(layer);
    }
}

void KVPool::copy_block(int64_t source, int64_t destination) {
    for (const KVLayer& layer : layers_) {
        const size_t bytes = block_bytes(layer);
        const size_t from = bytes * static_cast<size_t>(source);
        const size_t to = bytes * static_cast<size_t>(destination);
        std::memcpy(layer.keys + to, layer.keys + from, bytes);
        std::memcpy(layer.values + to, layer.values + from, bytes);
    }
}

}  // namespace caudal
