// The paged KV pool's memory (PagedAttention, arXiv 2309.06180): one array of blocks, in each of
// which every layer has its keys and then its values. A block is thus copied in one piece, and
// blocks in use share huge pages whatever the number of layers.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/token_ops.h"
#include "runtime/memory.h"

namespace caudal {

struct KVGeometry {
    int64_t kv_heads = 0;
    int64_t head_dim = 0;
};

class KVPool {
  public:
    KVPool(const std::vector<KVGeometry>& layers, KVType type, int64_t num_blocks);
    KVPool(const KVPool&) = delete;
    KVPool& operator=(const KVPool&) = delete;

    int64_t num_blocks() const { return num_blocks_; }
    const KVLayer& layer(int64_t index) const { return layers_.at(static_cast<size_t>(index)); }

    // Copies a whole block of every layer. Both ids must be below `num_blocks`.
    void copy_block(int64_t source, int64_t destination);

  private:
    int64_t num_blocks_;
    size_t block_bytes_;
    Reservation memory_;
    std::vector<KVLayer> layers_;
};

}  // namespace caudal
