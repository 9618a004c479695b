#include "runtime/weights.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace caudal {

namespace {

// Small matrices share an arena, so that each doesn't waste most of a 2 MiB page.
constexpr size_t kArenaBytes = size_t{32} << 20;
constexpr size_t kAlignment = 64;
constexpr int64_t kPanelsPerClaim = 4;

void read_all(int descriptor, int64_t offset, std::span<std::byte> out) {
    while (!out.empty()) {
        const ssize_t count = pread(descriptor, out.data(), out.size(), offset);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) throw std::runtime_error(std::string("can't read it: ") + strerror(errno));
        if (count == 0) {
            throw std::runtime_error(
                "it was cut or replaced while it was being read: it ends at byte " +
                std::to_string(offset));
        }
        offset += count;
        out = out.subspan(static_cast<size_t>(count));
    }
}

}  // namespace

Weights::Weights(const KernelTable& kernels, ThreadTeam& threads)
    : kernels_(kernels), threads_(threads) {}

int Weights::add_matrix(TensorType type, FileLocation source, int64_t rows, int64_t cols) {
    const BlockGeometry geometry = block_geometry(type);
    if (rows <= 0 || cols <= 0 || cols % geometry.elements != 0) {
        throw std::invalid_argument("a " + std::string(geometry.name) + " matrix of " +
                                    std::to_string(rows) + " x " + std::to_string(cols) +
                                    " isn't whole blocks of " + std::to_string(geometry.elements));
    }
    const int64_t row_bytes = cols / geometry.elements * geometry.bytes;
    const size_t panel_bytes = kernels_.linear.packed_bytes(type, kPanelRows, cols);
    size_t bytes = kernels_.linear.packed_bytes(type, rows, cols);
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (free_.size() < bytes) {
        arenas_.emplace_back(std::max(bytes, kArenaBytes), /*huge_pages=*/true);
        free_ = arenas_.back().bytes();
    }
    std::byte* data = free_.data();
    free_ = free_.subspan(bytes);

    PackedMatrix matrix;
    matrix.type = type;
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.data = data;
    std::atomic<int64_t> next{0};
    const int64_t panels = matrix.panels();
    threads_.run([&](int) {
        std::vector<std::byte> piece;
        while (true) {
            const int64_t begin = next.fetch_add(kPanelsPerClaim);
            if (begin >= panels) return;
            const int64_t first = begin * kPanelRows;
            const int64_t count = std::min(kPanelsPerClaim * kPanelRows, rows - first);
            piece.resize(static_cast<size_t>(count * row_bytes));
            read_all(source.descriptor, source.offset + first * row_bytes, piece);
            kernels_.linear.pack(type, piece, count, cols, 0, (count + kPanelRows - 1) / kPanelRows,
                                 data + static_cast<size_t>(begin) * panel_bytes);
        }
    });
    matrices_.push_back(matrix);
    bytes_ += bytes;
    return static_cast<int>(matrices_.size()) - 1;
}

int Weights::add_vector(std::vector<float> values) {
    bytes_ += values.size() * sizeof(float);
    vectors_.push_back(std::move(values));
    return static_cast<int>(vectors_.size()) - 1;
}

}  // namespace caudal
