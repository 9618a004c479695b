#include "runtime/weights.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <utility>

namespace caudal {

namespace {

constexpr size_t kAlignment = 64;
constexpr int64_t kPanelsPerClaim = 4;
// What is written to a file, or read from one, at once: enough to be worth a call.
constexpr int64_t kFileClaimBytes = 512 << 10;

int64_t row_bytes(TensorType type, int64_t cols) {
    const BlockGeometry geometry = block_geometry(type);
    return cols / geometry.elements * geometry.bytes;
}

// The sum over panels, in whatever order they come.
uint64_t sum_of_panels(std::span<const std::byte> panels, size_t panel_bytes) {
    uint64_t sum = 0;
    for (size_t at = 0; at < panels.size(); at += panel_bytes) {
        sum += checksum(panels.subspan(at, panel_bytes));
    }
    return sum;
}

}  // namespace

Weights::Weights(const KernelTable& kernels, ThreadTeam& threads)
    : kernels_(kernels), threads_(threads) {}

int Weights::add_matrix(TensorType type, int64_t rows, int64_t cols) {
    const BlockGeometry geometry = block_geometry(type);
    if (rows <= 0 || cols <= 0 || cols % geometry.elements != 0) {
        throw std::invalid_argument("a " + std::string(geometry.name) + " matrix of " +
                                    std::to_string(rows) + " x " + std::to_string(cols) +
                                    " isn't whole blocks of " + std::to_string(geometry.elements));
    }
    if (held_ || mapped_ || written_) {
        throw std::logic_error("a matrix that wasn't announced before");
    }
    PackedMatrix matrix;
    matrix.type = type;
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.stream = usual_stream();
    matrices_.push_back(matrix);
    places_.push_back(image_bytes_);
    checksums_.push_back(0);
    const size_t bytes = kernels_.linear.packed_bytes(type, rows, cols);
    image_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return static_cast<int>(matrices_.size()) - 1;
}

void Weights::hold_image() {
    held_.emplace(image_bytes_, /*huge_pages=*/true);
    point_matrices_at(held_->bytes().data());
}

void Weights::map_image(FileLocation image) {
    mapped_.emplace(image, image_bytes_);
    written_.reset();
    point_matrices_at(mapped_->bytes().data());
}

void Weights::write_image(FileLocation image) {
    written_ = image;
}

void Weights::point_matrices_at(const std::byte* image) {
    for (size_t i = 0; i < matrices_.size(); ++i) matrices_[i].data = image + places_[i];
}

std::span<const std::byte> Weights::image() const {
    if (held_) return held_->bytes();
    return mapped_ ? mapped_->bytes() : std::span<const std::byte>{};
}

std::span<const std::byte> Weights::bytes_of(int handle) const {
    const PackedMatrix& of = matrix(handle);
    return {of.data, static_cast<size_t>(of.panels()) * panel_bytes(of)};
}

std::span<const std::byte> Weights::expert_bytes(int group, int64_t expert) const {
    const size_t first = experts_.at(static_cast<size_t>(group)).first;
    return bytes_of(static_cast<int>(first) + static_cast<int>(expert));
}

size_t Weights::panel_bytes(const PackedMatrix& matrix) const {
    return kernels_.linear.packed_bytes(matrix.type, kPanelRows, matrix.cols);
}

void Weights::pack_matrix(int handle, FileLocation source) {
    const PackedMatrix& target = matrix(handle);
    const int64_t bytes_of_row = row_bytes(target.type, target.cols);
    pack(handle, 0, target.rows, [&](int64_t first, int64_t count, std::vector<std::byte>& piece) {
        piece.resize(static_cast<size_t>(count * bytes_of_row));
        read_all({source.descriptor, source.offset + first * bytes_of_row}, piece);
        return std::span<const std::byte>(piece);
    });
}

int64_t Weights::count_rows(int handle, int64_t first, std::span<const std::byte> rows) const {
    const PackedMatrix& target = matrix(handle);
    const auto bytes_of_row = static_cast<size_t>(row_bytes(target.type, target.cols));
    const auto count = static_cast<int64_t>(rows.size() / bytes_of_row);
    if (rows.size() % bytes_of_row != 0 || first < 0 || first % kPanelRows != 0 ||
        count > target.rows - first || (count % kPanelRows != 0 && count != target.rows - first)) {
        throw std::invalid_argument(std::to_string(rows.size()) + " bytes from row " +
                                    std::to_string(first) + " on aren't whole panels of a matrix");
    }
    return count;
}

void Weights::pack_rows(int handle, int64_t first, std::span<const std::byte> rows) {
    const int64_t count = count_rows(handle, first, rows);
    const PackedMatrix& target = matrix(handle);
    const auto bytes_of_row = static_cast<size_t>(row_bytes(target.type, target.cols));
    pack(handle, first, count, [&](int64_t begin, int64_t some, std::vector<std::byte>&) {
        return rows.subspan(static_cast<size_t>(begin - first) * bytes_of_row,
                            static_cast<size_t>(some) * bytes_of_row);
    });
}

bool Weights::has_rows(int handle, int64_t first, std::span<const std::byte> rows) const {
    const int64_t count = count_rows(handle, first, rows);
    const PackedMatrix& target = matrix(handle);
    const int64_t panels = (count + kPanelRows - 1) / kPanelRows;
    std::vector<std::byte> packed(static_cast<size_t>(panels) * panel_bytes(target));
    kernels_.linear.pack(target.type, rows, count, target.cols, 0, panels, packed.data());
    return std::equal(packed.begin(), packed.end(),
                      target.data + static_cast<size_t>(first / kPanelRows) * panel_bytes(target));
}

template <typename Source>
void Weights::pack(int handle, int64_t first, int64_t count, const Source& source) {
    const PackedMatrix& target = matrix(handle);
    const size_t place = places_.at(static_cast<size_t>(handle));
    const size_t bytes_of_panel = panel_bytes(target);
    if (!held_ && !written_) throw std::logic_error("there is no place to pack to");
    const int64_t claim =
        held_ ? kPanelsPerClaim
              : std::max(kPanelsPerClaim, kFileClaimBytes / static_cast<int64_t>(bytes_of_panel));
    const int64_t end = first + count;
    std::atomic<int64_t> next{first};
    std::atomic<uint64_t> sum{0};
    threads_.run([&](int) {
        std::vector<std::byte> piece;
        std::vector<std::byte> packed;
        while (true) {
            const int64_t begin = next.fetch_add(claim * kPanelRows);
            if (begin >= end) return;
            const int64_t some = std::min(claim * kPanelRows, end - begin);
            const int64_t panels = (some + kPanelRows - 1) / kPanelRows;
            const size_t at = place + static_cast<size_t>(begin / kPanelRows) * bytes_of_panel;
            const size_t size = static_cast<size_t>(panels) * bytes_of_panel;
            if (!held_) packed.resize(size);
            const std::span<std::byte> out =
                held_ ? held_->bytes().subspan(at, size) : std::span<std::byte>(packed);
            const std::span<const std::byte> bytes = source(begin, some, piece);
            kernels_.linear.pack(target.type, bytes, some, target.cols, 0, panels, out.data());
            sum.fetch_add(sum_of_panels(out, bytes_of_panel), std::memory_order_relaxed);
            if (!held_) {
                write_all({written_->descriptor, written_->offset + static_cast<int64_t>(at)}, out);
            }
        }
    });
    uint64_t& total = checksums_[static_cast<size_t>(handle)];
    total = (first == 0 ? 0 : total) + sum.load();
}

void Weights::read_matrices(FileLocation image, int first, int count,
                            std::span<const uint64_t> expected) {
    if (!held_) throw std::logic_error("there is no memory to read to");
    if (first < 0 || count < 0 ||
        static_cast<size_t>(first) + static_cast<size_t>(count) >
            std::min(matrices_.size(), expected.size())) {
        throw std::invalid_argument("matrices that don't exist");
    }
    struct Piece {
        size_t matrix;
        size_t begin;
        size_t bytes;
    };
    std::vector<Piece> pieces;
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(first + count); ++i) {
        const size_t bytes_of_panel = panel_bytes(matrices_[i]);
        const size_t bytes = static_cast<size_t>(matrices_[i].panels()) * bytes_of_panel;
        const size_t claim =
            std::max<size_t>(1, static_cast<size_t>(kFileClaimBytes) / bytes_of_panel) *
            bytes_of_panel;
        for (size_t begin = 0; begin < bytes; begin += claim) {
            pieces.push_back({i, begin, std::min(claim, bytes - begin)});
        }
    }
    std::vector<std::atomic<uint64_t>> sums(matrices_.size());
    std::atomic<size_t> next{0};
    threads_.run([&](int) {
        for (size_t index = next.fetch_add(1); index < pieces.size(); index = next.fetch_add(1)) {
            const auto [matrix, begin, bytes] = pieces[index];
            const size_t at = places_[matrix] + begin;
            const std::span<std::byte> out = held_->bytes().subspan(at, bytes);
            read_all({image.descriptor, image.offset + static_cast<int64_t>(at)}, out);
            sums[matrix].fetch_add(sum_of_panels(out, panel_bytes(matrices_[matrix])),
                                   std::memory_order_relaxed);
        }
    });
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(first + count); ++i) {
        if (sums[i].load() != expected[i]) throw std::runtime_error("it isn't what was packed");
        checksums_[i] = expected[i];
    }
}

void Weights::choose_streams() {
    if (!held_) return;
    streams_ = caudal::choose_streams(kernels_, threads_, matrices_);
    for (PackedMatrix& matrix : matrices_) {
        for (const StreamChoice& choice : streams_) {
            if (choice.type == matrix.type) matrix.stream = choice.policy;
        }
    }
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
    vector_bytes_ += values.size() * sizeof(float);
    vectors_.push_back(std::move(values));
    return static_cast<int>(vectors_.size()) - 1;
}

}  // namespace caudal
