#include "runtime/weights.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <utility>

namespace caudal {

namespace {

// Small matrices share an arena, so that each doesn't waste most of a 2 MiB page.
constexpr size_t kArenaBytes = size_t{32} << 20;
constexpr size_t kAlignment = 64;
constexpr int64_t kPanelsPerClaim = 4;

}  // namespace

Weights::Weights(const KernelTable& kernels, ThreadPool& threads)
    : kernels_(kernels), threads_(threads) {}

int Weights::add_matrix(TensorType type, std::span<const std::byte> source, int64_t rows,
                        int64_t cols) {
    const BlockGeometry geometry = block_geometry(type);
    if (rows <= 0 || cols <= 0 || cols % geometry.elements != 0) {
        throw std::invalid_argument("a " + std::string(geometry.name) + " matrix of " +
                                    std::to_string(rows) + " x " + std::to_string(cols) +
                                    " isn't whole blocks of " + std::to_string(geometry.elements));
    }
    const auto expected = static_cast<size_t>(rows * (cols / geometry.elements) * geometry.bytes);
    if (source.size() != expected) {
        throw std::invalid_argument("matrix data has " + std::to_string(source.size()) +
                                    " bytes instead of " + std::to_string(expected));
    }
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
        while (true) {
            const int64_t begin = next.fetch_add(kPanelsPerClaim);
            if (begin >= panels) return;
            const int64_t end = std::min(begin + kPanelsPerClaim, panels);
            kernels_.linear.pack(type, source, rows, cols, begin, end, data);
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
