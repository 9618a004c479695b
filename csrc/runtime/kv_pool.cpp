#include "runtime/kv_pool.h"

#include <cstring>
#include <stdexcept>

namespace caudal {

namespace {

int64_t checked_elements(const std::vector<KVGeometry>& layers) {
    int64_t elements = 0;
    for (const KVGeometry& layer : layers) {
        if (layer.kv_heads <= 0 || layer.head_dim <= 0 || layer.head_dim % 8 != 0) {
            throw std::invalid_argument("attention needs a head size that is a multiple of 8");
        }
        elements += 2 * layer.kv_heads * layer.head_dim * kBlockTokens;
    }
    return elements;
}

int64_t checked_blocks(int64_t num_blocks) {
    if (num_blocks <= 0) throw std::invalid_argument("the KV pool needs at least one block");
    return num_blocks;
}

}  // namespace

KVPool::KVPool(const std::vector<KVGeometry>& layers, KVType type, int64_t num_blocks)
    : num_blocks_(checked_blocks(num_blocks)),
      block_bytes_(static_cast<size_t>(checked_elements(layers)) *
                   static_cast<size_t>(element_bytes(type))),
      memory_(block_bytes_ * static_cast<size_t>(num_blocks), /*huge_pages=*/true) {
    std::byte* next = memory_.bytes().data();
    for (const KVGeometry& geometry : layers) {
        KVLayer layer;
        layer.type = type;
        layer.kv_heads = geometry.kv_heads;
        layer.head_dim = geometry.head_dim;
        layer.block_stride =
            static_cast<int64_t>(block_bytes_ / static_cast<size_t>(element_bytes(type)));
        const size_t bytes = static_cast<size_t>(layer.kv_heads * layer.head_elements()) *
                             static_cast<size_t>(element_bytes(type));
        layer.keys = next;
        layer.values = next + bytes;
        next += 2 * bytes;
        layers_.push_back(layer);
    }
}

void KVPool::copy_block(int64_t source, int64_t destination) {
    std::byte* data = memory_.bytes().data();
    std::memcpy(data + block_bytes_ * static_cast<size_t>(destination),
                data + block_bytes_ * static_cast<size_t>(source), block_bytes_);
}

}  // namespace caudal
