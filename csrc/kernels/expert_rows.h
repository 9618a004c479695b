// The tokens of a batch in the order in which experts compute for them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/routing.h"

namespace caudal {

// Activations are laid out in tiles of four rows.
constexpr int64_t kRowTile = 4;

// Each expert's tokens are rows one after the other, from the beginning of a tile on; experts come
// in the order of their numbers, and those that nobody chose take no rows.
class ExpertRows {
  public:
    // An expert that tokens chose.
    struct Chosen {
        int64_t expert;
        int64_t first_tile;
        int64_t rows;
    };

    // Tiles that `choices` choices among `experts` experts take, at most.
    static int64_t most_tiles(int64_t choices, int64_t experts);

    // Memory for so much, so that `arrange` allocates nothing.
    void reserve(int64_t experts, int64_t choices);

    void arrange(std::span<const Choice> choices, int64_t experts);

    std::span<const Chosen> chosen() const { return chosen_; }
    int64_t tiles() const { return static_cast<int64_t>(choice_of_.size()) / kRowTile; }
    // The choice that a row is computed for; -1 behind the last of an expert.
    int32_t choice_of(int64_t row) const { return choice_of_[static_cast<size_t>(row)]; }
    int32_t row_of(int64_t choice) const { return row_of_[static_cast<size_t>(choice)]; }
    // How many rows of a tile are computed: its first.
    int64_t rows_of_tile(int64_t tile) const;

  private:
    std::vector<Chosen> chosen_;
    std::vector<int32_t> next_row_;   // per expert; while arranging
    std::vector<int32_t> choice_of_;  // per row
    std::vector<int32_t> row_of_;     // per choice
};

}  // namespace caudal
