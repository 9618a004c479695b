// A model's tensors in the kernels' layout.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "isa/kernel_table.h"
#include "runtime/memory.h"
#include "runtime/thread_team.h"

namespace caudal {

// Where in an open file a tensor begins.
struct FileLocation {
    int descriptor;
    int64_t offset;
};

// Matrices are packed as they are added, in parallel; small vectors (norms, biases) are kept as
// floats. Handles are indices in order of addition.
class Weights {
  public:
    Weights(const KernelTable& kernels, ThreadTeam& threads);
    Weights(const Weights&) = delete;
    Weights& operator=(const Weights&) = delete;

    // Reads and packs a row-major GGUF tensor of `rows` × `cols`. Each thread reads what it packs,
    // so that no more than that is in memory twice; and it is read, not mapped, so that a file that
    // shrinks meanwhile is an error (std::runtime_error) and no signal. Throws
    // std::invalid_argument when rows aren't whole blocks.
    int add_matrix(TensorType type, FileLocation source, int64_t rows, int64_t cols);
    // Makes room for a matrix of zeros, whose rows come by `pack_rows`. Throws as `add_matrix`.
    int reserve_matrix(TensorType type, int64_t rows, int64_t cols);
    // Packs whole rows from `first` on, which begins a panel; they end with a panel, or are the
    // matrix's last. Throws std::invalid_argument if they don't, or are none of its rows.
    void pack_rows(int handle, int64_t first, std::span<const std::byte> rows);
    // Names matrices that were added one after the other: one of each expert of a layer, in the
    // order of their numbers. Throws std::invalid_argument if they aren't there, or not alike.
    int group_experts(int first, int count);
    int add_vector(std::vector<float> values);

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
    size_t bytes() const { return bytes_; }

  private:
    // Packs rows `first` to `first + count` in parallel; `source` gives a few rows' bytes, and may
    // use the buffer that it is handed.
    template <typename Source>
    void pack(int handle, int64_t first, int64_t count, const Source& source);

    const KernelTable& kernels_;
    ThreadTeam& threads_;
    std::vector<Reservation> arenas_;
    std::span<std::byte> free_;  // what is left of the last arena
    std::vector<PackedMatrix> matrices_;
    std::vector<std::pair<size_t, size_t>> experts_;  // of each group the first, and how many
    std::vector<std::byte*> panels_;                  // where each matrix is packed to
    std::vector<std::vector<float>> vectors_;
    size_t bytes_ = 0;
};

}  // namespace caudal
