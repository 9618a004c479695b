// Weights that don't fit in memory, read from their mapped file ahead of who computes with them.
//
// Left to itself the system would keep what was used last, of which nothing is left when the next
// token needs it. So the matrices that every token goes through, in order, are taken as a ring: a
// part of it stays in memory, and the rest is read a little ahead and let go of behind, so that a
// token costs the reading of what doesn't fit, and no more. Of experts, those that were chosen are
// read at once and then left to the system, which keeps what is chosen often.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "runtime/memory.h"

namespace caudal {

class WeightStream {
  public:
    // `ring`: the matrices that all tokens go through; `resident`: bytes of memory for all of them
    // and what is read ahead. Both within `mapping`, which outlives this.
    WeightStream(const Mapping& mapping, std::span<const std::byte> ring, size_t resident);
    ~WeightStream();
    WeightStream(const WeightStream&) = delete;
    WeightStream& operator=(const WeightStream&) = delete;

    // Says that everything before `place`, of the ring, has been computed with. Called from one
    // thread.
    void reach(const std::byte* place);
    // Says that these bytes, outside the ring, are needed now. Called from one thread.
    void want(std::span<const std::byte> bytes);

    // Bytes that are read again for every token.
    size_t streamed() const { return static_cast<size_t>(pieces_ - resident_) * kPieceBytes; }

  private:
    static constexpr size_t kPieceBytes = size_t{2} << 20;

    bool is_streamed(int64_t piece) const { return piece % pieces_ >= resident_; }
    std::span<const std::byte> bytes_of(int64_t piece) const;
    void run();
    void read_ahead(int64_t position);
    void let_go(int64_t position);

    const Mapping& mapping_;
    const std::byte* ring_;  // where its first piece begins: at a large page of the file
    size_t ring_bytes_;
    int64_t pieces_;
    int64_t resident_;  // of the pieces
    int64_t window_;    // pieces that are read ahead

    // Counted in pieces since the beginning, over all rounds.
    int64_t ahead_ = 0;   // what was read
    int64_t behind_ = 0;  // what was let go of

    std::mutex mutex_;
    std::condition_variable changed_;
    int64_t position_ = 0;
    std::vector<std::span<const std::byte>> wanted_;
    bool stopping_ = false;
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace caudal
