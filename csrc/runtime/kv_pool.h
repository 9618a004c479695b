// The memory of paged KV pools (PagedAttention, arXiv 2309.06180): each is one array of blocks, in
// each of which every layer has its keys and then its values. A block is thus copied in one piece,
// and blocks in use share huge pages whatever the number of layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/token_ops.h"
#include "runtime/memory.h"

namespace caudal {

struct KVGeometry {
    int64_t kv_heads = 0;
    int64_t key_dim = 0;  // channels of a head
    int64_t value_dim = 0;
    bool latent = false;  // values are the first channels of keys, and have no place of their own
    int64_t window = 0;   // tokens after which keys and values are forgotten; 0: they are kept

    bool operator==(const KVGeometry&) const = default;
};

class KVPool {
  public:
    KVPool(const std::vector<KVGeometry>& layers, KVType type, int64_t num_blocks);
    KVPool(const KVPool&) = delete;
    KVPool& operator=(const KVPool&) = delete;
    KVPool(KVPool&&) = default;

    int64_t num_blocks() const { return num_blocks_; }
    // All that a block holds, whatever it means.
    std::span<std::byte> block(int64_t index) {
        return memory_.bytes().subspan(block_bytes_ * static_cast<size_t>(index), block_bytes_);
    }
    size_t block_bytes() const { return block_bytes_; }
    const KVLayer& layer(int64_t index) const { return layers_.at(static_cast<size_t>(index)); }

    // Copies a whole block of every layer. Both ids must be below `num_blocks`.
    void copy_block(int64_t source, int64_t destination);

  private:
    int64_t num_blocks_;
    size_t block_bytes_;
    Reservation memory_;
    std::vector<KVLayer> layers_;
};

// The pools of a program, by index: first that of the layers that keep all tokens, then one for
// each window, shortest first.
class KVPools {
  public:
    // `window_blocks`: the number of blocks for each window. Throws std::invalid_argument where
    // there are more or fewer windows, or sizes make no sense.
    KVPools(const std::vector<KVGeometry>& layers, KVType type, int64_t num_blocks,
            const std::vector<int64_t>& window_blocks);

    size_t size() const { return pools_.size(); }
    KVPool& operator[](size_t pool) { return pools_[pool]; }
    const KVPool& operator[](size_t pool) const { return pools_[pool]; }
    // Of a pool but the first.
    int64_t window(size_t pool) const { return windows_[pool - 1]; }

    // Which pool a layer of the program is in, and what there is of it.
    size_t pool_of(int64_t layer) const { return places_.at(static_cast<size_t>(layer)).pool; }
    const KVLayer& layer(int64_t index) const {
        const Place& place = places_.at(static_cast<size_t>(index));
        return pools_[place.pool].layer(place.layer);
    }

  private:
    struct Place {
        size_t pool;
        int64_t layer;  // in the pool
    };

    std::vector<int64_t> windows_;
    std::vector<KVPool> pools_;
    std::vector<Place> places_;  // per layer
};

}  // namespace caudal
