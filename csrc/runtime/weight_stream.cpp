#include "runtime/weight_stream.h"

#include <algorithm>
#include <utility>

namespace caudal {

namespace {

constexpr int64_t kMostPiecesAhead = 24;
// Pieces that a stage computes with meanwhile, and those that are being let go of.
constexpr int64_t kPiecesInUse = 4;

}  // namespace

WeightStream::WeightStream(const Mapping& mapping, std::span<const std::byte> ring, size_t resident)
    : mapping_(mapping) {
    const std::byte* image = mapping.bytes().data();
    const auto begin = static_cast<size_t>(ring.data() - image) / kPieceBytes * kPieceBytes;
    ring_ = image + begin;
    ring_bytes_ = static_cast<size_t>(ring.data() + ring.size() - ring_);
    pieces_ =
        std::max<int64_t>(1, static_cast<int64_t>((ring_bytes_ + kPieceBytes - 1) / kPieceBytes));
    const auto room = static_cast<int64_t>(resident / kPieceBytes);
    window_ = std::clamp<int64_t>(room / 8, 1, kMostPiecesAhead);
    resident_ = room >= pieces_ ? pieces_ : std::max<int64_t>(0, room - window_ - kPiecesInUse);
    // What isn't in the ring is needed here and there: whole reads are asked for by `want`.
    mapping.expect_random(image, begin);
    mapping.expect_random(ring_ + ring_bytes_, mapping.bytes().size() - begin - ring_bytes_);
    thread_ = std::thread([this] { run(); });
}

WeightStream::~WeightStream() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_one();
    thread_.join();
}

void WeightStream::reach(const std::byte* place) {
    if (resident_ == pieces_ || place < ring_ || place >= ring_ + ring_bytes_) return;
    const int64_t piece = (place - ring_) / static_cast<int64_t>(kPieceBytes);
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const int64_t forward = (piece - position_ % pieces_ + pieces_) % pieces_;
        // Matrices are in the order of their first use, all but a few that are used again: going
        // back a little isn't a new round.
        if (forward == 0 || forward > pieces_ / 4 * 3) return;
        position_ += forward;
    }
    changed_.notify_one();
}

void WeightStream::want(std::span<const std::byte> bytes) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        wanted_.push_back(bytes);
    }
    changed_.notify_one();
}

std::span<const std::byte> WeightStream::bytes_of(int64_t piece) const {
    const size_t begin = static_cast<size_t>(piece % pieces_) * kPieceBytes;
    return {ring_ + begin, std::min(kPieceBytes, ring_bytes_ - begin)};
}

void WeightStream::run() {
    std::unique_lock<std::mutex> lock(mutex_);
    int64_t seen = -1;
    while (true) {
        changed_.wait(lock, [&] { return stopping_ || position_ != seen || !wanted_.empty(); });
        if (stopping_) return;
        seen = position_;
        const std::vector<std::span<const std::byte>> wanted = std::exchange(wanted_, {});
        lock.unlock();
        for (const std::span<const std::byte> bytes : wanted) {
            if (!mapping_.is_in_memory(bytes)) mapping_.read_soon(bytes);
        }
        let_go(seen);
        read_ahead(seen);
        lock.lock();
    }
}

void WeightStream::read_ahead(int64_t position) {
    ahead_ = std::max(ahead_, position);
    for (; ahead_ < position + std::min(window_, pieces_); ++ahead_) {
        if (is_streamed(ahead_)) mapping_.read_now(bytes_of(ahead_));
    }
}

void WeightStream::let_go(int64_t position) {
    behind_ = std::max(behind_, position - pieces_);
    for (; behind_ < position; ++behind_) {
        if (is_streamed(behind_)) mapping_.let_go(bytes_of(behind_));
    }
}

}  // namespace caudal
