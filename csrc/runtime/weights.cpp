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

int64_t row_bytes(TensorType type, int64_t cols) {
    const BlockGeometry geometry = block_geometry(type);
    return cols / geometry.elements * geometry.bytes;
}

}  // namespace

Weights::Weights(const KernelTable& kernels, ThreadTeam& threads)
    : kernels_(kernels), threads_(threads) {}

int Weights::reserve_matrix(TensorType type, int64_t rows, int64_t cols) {
    const BlockGeometry geometry = block_geometry(type);
    if (rows <= 0 || cols <= 0 || cols % geometry.elements != 0) {
        throw std::invalid_argument("a " + std::string(geometry.name) + " matrix of " +
                                    std::to_string(rows) + " x " + std::to_string(cols) +
                                    " isn't whole blocks of " + std::to_string(geometry.elements));
    }
    size_t bytes = kernels_.linear.packed_bytes(type, rows, cols);
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (free_.size() < bytes) {
        arenas_.emplace_back(std::max(bytes, kArenaBytes), /*huge_pages=*/true);
        free_ = arenas_.back().bytes();
    }
    PackedMatrix matrix;
    matrix.type = type;
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.data = free_.data();
    panels_.push_back(free_.data());
    free_ = free_.subspan(bytes);
    matrices_.push_back(matrix);
    bytes_ += bytes;
    return static_cast<int>(matrices_.size()) - 1;
}

int Weights::add_matrix(TensorType type, FileLocation source, int64_t rows, int64_t cols) {
    const int handle = reserve_matrix(type, rows, cols);
    const int64_t bytes_of_row = row_bytes(type, cols);
    pack(handle, 0, rows, [&](int64_t first, int64_t count, std::vector<std::byte>& piece) {
        piece.resize(static_cast<size_t>(count * bytes_of_row));
        read_all(source.descriptor, source.offset + first * bytes_of_row, piece);
        return std::span<const std::byte>(piece);
    });
    return handle;
}

void Weights::pack_rows(int handle, int64_t first, std::span<const std::byte> rows) {
    const PackedMatrix& target = matrix(handle);
    const auto bytes_of_row = static_cast<size_t>(row_bytes(target.type, target.cols));
    const auto count = static_cast<int64_t>(rows.size() / bytes_of_row);
    if (rows.size() % bytes_of_row != 0 || first < 0 || first % kPanelRows != 0 ||
        count > target.rows - first || (count % kPanelRows != 0 && count != target.rows - first)) {
        throw std::invalid_argument(std::to_string(rows.size()) + " bytes from row " +
                                    std::to_string(first) + " on aren't whole panels of a matrix");
    }
    pack(handle, first, count, [&](int64_t begin, int64_t some, std::vector<std::byte>&) {
        return rows.subspan(static_cast<size_t>(begin - first) * bytes_of_row,
                            static_cast<size_t>(some) * bytes_of_row);
    });
}

template <typename Source>
void Weights::pack(int handle, int64_t first, int64_t count, const Source& source) {
    const PackedMatrix& target = matrix(handle);
    std::byte* out = panels_.at(static_cast<size_t>(handle));
    const size_t panel_bytes = kernels_.linear.packed_bytes(target.type, kPanelRows, target.cols);
    const int64_t end = first + count;
    std::atomic<int64_t> next{first};
    threads_.run([&](int) {
        std::vector<std::byte> piece;
        while (true) {
            const int64_t begin = next.fetch_add(kPanelsPerClaim * kPanelRows);
            if (begin >= end) return;
            const int64_t some = std::min(kPanelsPerClaim * kPanelRows, end - begin);
            const std::span<const std::byte> bytes = source(begin, some, piece);
            kernels_.linear.pack(target.type, bytes, some, target.cols, 0,
                                 (some + kPanelRows - 1) / kPanelRows,
                                 out + static_cast<size_t>(begin / kPanelRows) * panel_bytes);
        }
    });
}

int Weights::group_experts(int first, int count) {
    const auto end = static_cast<int64_t>(matrices_.size());
    bool alike = first >= 0 && count > 0 && first <= end - count;
    for (int i = first; alike && i < first + count; ++i) {
        alike = matrix(i).type == matrix(first).type && matrix(i).rows == matrix(first).rows &&
                matrix(i).cols == matrix(first).cols;
    }
    if (!alike) throw std::invalid_argument("experts need a matrix each, and all of one shape");
    experts_.emplace_back(static_cast<size_t>(first), static_cast<size_t>(count));
    return static_cast<int>(experts_.size()) - 1;
}

int Weights::add_vector(std::vector<float> values) {
    bytes_ += values.size() * sizeof(float);
    vectors_.push_back(std::move(values));
    return static_cast<int>(vectors_.size()) - 1;
}

}  // namespace caudal
