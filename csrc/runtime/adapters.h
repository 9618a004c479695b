// LoRA adapters (arXiv 2106.09685): changes of matrices, for the rows of sequences that ask for
// them. y = W x becomes y = W x + B (scale · A x), where A has few rows and B as few columns.
//
// Both factors are multiplied by unquantised activations, each row by itself: its result depends on
// that row and its adapter alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/low_rank.h"
#include "runtime/memory.h"
#include "runtime/thread_team.h"
#include "runtime/weights.h"

namespace caudal {

// A change as it comes, row by row: `a` rank × columns of the matrix, `b` rows × rank.
struct AdapterFactors {
    int matrix;  // in the weights
    int64_t rank;
    std::span<const float> a;
    std::span<const float> b;
    float scale;
};

class Adapter {
  public:
    struct Change {
        Factor a;
        Factor b;
        float scale;
    };

    // Packs the factors; `exact`: as the floats that they are. Throws std::invalid_argument if they
    // aren't of such shapes, or a matrix is changed twice or isn't there.
    Adapter(ThreadTeam& threads, const Weights& weights, bool exact,
            std::span<const AdapterFactors> factors);

    // What is added to a matrix; null: nothing.
    const Change* change(int matrix) const {
        const int index = index_of_[static_cast<size_t>(matrix)];
        return index < 0 ? nullptr : &changes_[static_cast<size_t>(index)];
    }

    int64_t rank() const { return rank_; }  // the largest
    size_t bytes() const { return memory_->bytes().size(); }

  private:
    std::vector<Change> changes_;
    std::vector<int> index_of_;  // per matrix of the weights: its change, or -1
    int64_t rank_ = 0;
    std::optional<Reservation> memory_;  // of the packed factors
};

// Rows that a thread multiplies by a factor at a time, at most.
constexpr int64_t kAdapterRows = 32;

// Rows [first, first + count) of a section's buffers, all of which have one adapter.
struct AdaptedRows {
    const Adapter* adapter;
    int64_t first;
    int64_t count;  // up to kAdapterRows
};

}  // namespace caudal
