// A model's tensors in the kernels' layout.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "isa/kernel_table.h"
#include "runtime/file_bytes.h"
#include "runtime/memory.h"
#include "runtime/stream_choice.h"
#include "runtime/thread_team.h"

namespace caudal {

// Matrices are announced first, all of them; then it is said where their packed bytes are, one
// behind the other as announced (the *image*): in memory of our own, or in a file that is mapped;
// and then they are packed, or read, or there already. Small vectors (norms, biases) are kept as
// floats. Handles are indices in order of addition.
class Weights {
  public:
    Weights(const KernelTable& kernels, ThreadTeam& threads);
    Weights(const Weights&) = delete;
    Weights& operator=(const Weights&) = delete;

    // Announces a matrix. Throws std::invalid_argument when rows aren't whole blocks.
    int add_matrix(TensorType type, int64_t rows, int64_t cols);
    // Names matrices that were added one after the other: one of each expert of a layer, in the
    // order of their numbers. Throws std::invalid_argument if they aren't there, or not alike.
    int group_experts(int first, int count);
    int add_vector(std::vector<float> values);

    // Sets memory aside for the image; zeros, until something is packed or read.
    void hold_image();
    // Takes the image from a file, whose pages stay the file's; see `Mapping`.
    void map_image(FileLocation image);
    // What is packed from now on is written to a file, and not kept.
    void write_image(FileLocation image);

    // Reads and packs the row-major GGUF tensor at `source`. Each thread reads what it packs, so
    // that no more than that is in memory twice; and it is read, not mapped, so that a file that
    // shrinks meanwhile is an error (std::runtime_error) and no signal.
    void pack_matrix(int handle, FileLocation source);
    // Packs whole rows from `first` on, which begins a panel; they end with a panel, or are the
    // matrix's last. Throws std::invalid_argument if they don't, or are none of its rows.
    void pack_rows(int handle, int64_t first, std::span<const std::byte> rows);
    // Whether these rows, which are as for `pack_rows`, are packed to what the image has.
    bool has_rows(int handle, int64_t first, std::span<const std::byte> rows) const;
    // Reads `count` packed matrices from `first` on from a file's image into memory. Throws
    // std::runtime_error if the file ends before, or they aren't what was packed: `checksums` has
    // those of all.
    void read_matrices(FileLocation image, int first, int count,
                       std::span<const uint64_t> checksums);
    // Of each matrix, the sum over its panels' bytes, once they have been packed.
    std::span<const uint64_t> checksums() const { return checksums_; }

    // Chooses how matrices are streamed, once they are where they are read; measured, unless they
    // are mapped, for then measuring might read them from the disk.
    void choose_streams();
    std::span<const StreamChoice> streams() const { return streams_; }

    const PackedMatrix& matrix(int handle) const {
        return matrices_.at(static_cast<size_t>(handle));
    }
    std::span<const PackedMatrix> experts(int handle) const {
        const auto [first, count] = experts_.at(static_cast<size_t>(handle));
        return std::span(matrices_).subspan(first, count);
    }
    const std::vector<float>& vector(int handle) const {
        return vectors_.at(static_cast<size_t>(handle));
    }
    size_t num_matrices() const { return matrices_.size(); }
    size_t num_experts() const { return experts_.size(); }
    size_t num_vectors() const { return vectors_.size(); }
    size_t image_bytes() const { return image_bytes_; }
    // Empty until it is somewhere.
    std::span<const std::byte> image() const;
    // The file's mapping that it is; null where it is memory of our own.
    const Mapping* mapping() const { return mapped_ ? &*mapped_ : nullptr; }
    // Of a matrix, and of an expert's in a group.
    std::span<const std::byte> bytes_of(int handle) const;
    std::span<const std::byte> expert_bytes(int group, int64_t expert) const;
    // All that it takes, vectors included.
    size_t bytes() const { return image_bytes_ + vector_bytes_; }

  private:
    size_t panel_bytes(const PackedMatrix& matrix) const;
    // Checks that rows are as `pack_rows` wants them; returns how many.
    int64_t count_rows(int handle, int64_t first, std::span<const std::byte> rows) const;
    // Packs rows `first` to `first + count` in parallel; `source` gives a few rows' bytes, and may
    // use the buffer that it is handed.
    template <typename Source>
    void pack(int handle, int64_t first, int64_t count, const Source& source);
    void point_matrices_at(const std::byte* image);

    const KernelTable& kernels_;
    ThreadTeam& threads_;
    std::vector<PackedMatrix> matrices_;
    std::vector<size_t> places_;                      // of each in the image
    std::vector<uint64_t> checksums_;                 // of each
    std::vector<std::pair<size_t, size_t>> experts_;  // of each group the first, and how many
    std::vector<std::vector<float>> vectors_;
    std::vector<StreamChoice> streams_;
    size_t image_bytes_ = 0;
    size_t vector_bytes_ = 0;
    std::optional<Reservation> held_;
    std::optional<Mapping> mapped_;
    std::optional<FileLocation> written_;
};

}  // namespace caudal
