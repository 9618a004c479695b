#include "runtime/kv_pool.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace caudal {

namespace {

KVLayer layer_at(std::byte* begin, const KVGeometry& of, KVType type) {
    return KVLayer::at(begin, type, of.kv_heads, of.key_dim, of.value_dim, of.latent);
}

int64_t checked_bytes(const std::vector<KVGeometry>& layers, KVType type) {
    int64_t bytes = 0;
    for (const KVGeometry& layer : layers) {
        if (layer.kv_heads <= 0 || layer.key_dim <= 0 || layer.key_dim % 8 != 0 ||
            layer.value_dim <= 0 || layer.value_dim % 8 != 0) {
            throw std::invalid_argument("attention needs a head size that is a multiple of 8");
        }
        if (layer.latent && layer.value_dim >= layer.key_dim) {
            throw std::invalid_argument("a latent has values in some of its channels, not in all");
        }
        const int64_t keys = layer.key_dim - (layer.latent ? layer.value_dim : 0);
        if (type == KVType::Q8 && std::max(keys, layer.value_dim) > kMostScaledChannels) {
            throw std::invalid_argument("keys and values in q8 have 512 channels at most");
        }
        bytes += layer_at(nullptr, layer, type).token_bytes() * kBlockTokens;
    }
    return bytes;
}

int64_t checked_blocks(int64_t num_blocks) {
    if (num_blocks <= 0) throw std::invalid_argument("the KV pool needs at least one block");
    return num_blocks;
}

}  // namespace

KVPool::KVPool(const std::vector<KVGeometry>& layers, KVType type, int64_t num_blocks)
    : num_blocks_(checked_blocks(num_blocks)),
      block_bytes_(static_cast<size_t>(checked_bytes(layers, type))),
      memory_(block_bytes_ * static_cast<size_t>(num_blocks), /*huge_pages=*/true) {
    std::byte* next = memory_.bytes().data();
    for (const KVGeometry& geometry : layers) {
        KVLayer layer = layer_at(next, geometry, type);
        next += layer.token_bytes() * kBlockTokens;
        layer.block_stride = static_cast<int64_t>(block_bytes_) / element_bytes(type);
        layers_.push_back(layer);
    }
}

void KVPool::copy_block(int64_t source, int64_t destination) {
    std::byte* data = memory_.bytes().data();
    std::memcpy(data + block_bytes_ * static_cast<size_t>(destination),
                data + block_bytes_ * static_cast<size_t>(source), block_bytes_);
}

KVPools::KVPools(const std::vector<KVGeometry>& layers, KVType type, int64_t num_blocks,
                 const std::vector<int64_t>& window_blocks) {
    for (const KVGeometry& layer : layers) {
        if (layer.window < 0) throw std::invalid_argument("a window can't be negative");
        if (layer.window > 0) windows_.push_back(layer.window);
    }
    std::ranges::sort(windows_);
    const auto repeated = std::ranges::unique(windows_);
    windows_.erase(repeated.begin(), repeated.end());
    if (window_blocks.size() != windows_.size()) {
        throw std::invalid_argument("each window of the program needs a number of blocks");
    }
    std::vector<std::vector<KVGeometry>> layers_of(1 + windows_.size());
    for (const KVGeometry& layer : layers) {
        size_t pool = 0;
        if (layer.window > 0) {
            const auto found = std::ranges::lower_bound(windows_, layer.window);
            pool = 1 + static_cast<size_t>(found - windows_.begin());
        }
        places_.push_back({pool, static_cast<int64_t>(layers_of[pool].size())});
        layers_of[pool].push_back(layer);
    }
    for (size_t pool = 0; pool < layers_of.size(); ++pool) {
        pools_.emplace_back(layers_of[pool], type,
                            pool == 0 ? num_blocks : window_blocks[pool - 1]);
    }
}

}  // namespace caudal
