#include "kernels/expert_rows.h"

#include <algorithm>

namespace caudal {

int64_t ExpertRows::most_tiles(int64_t choices, int64_t experts) {
    return (choices + (kRowTile - 1) * std::min(experts, choices)) / kRowTile;
}

void ExpertRows::reserve(int64_t experts, int64_t choices) {
    chosen_.reserve(static_cast<size_t>(experts));
    next_row_.reserve(static_cast<size_t>(experts));
    choice_of_.reserve(static_cast<size_t>(most_tiles(choices, experts) * kRowTile));
    row_of_.reserve(static_cast<size_t>(choices));
}

void ExpertRows::arrange(std::span<const Choice> choices, int64_t experts) {
    next_row_.assign(static_cast<size_t>(experts), 0);
    for (const Choice& choice : choices) ++next_row_[static_cast<size_t>(choice.expert)];
    chosen_.clear();
    int64_t tiles = 0;
    for (int64_t expert = 0; expert < experts; ++expert) {
        int32_t& next = next_row_[static_cast<size_t>(expert)];
        if (next == 0) continue;
        chosen_.push_back({expert, tiles, next});
        next = static_cast<int32_t>(tiles * kRowTile);
        tiles += (chosen_.back().rows + kRowTile - 1) / kRowTile;
    }
    choice_of_.assign(static_cast<size_t>(tiles * kRowTile), -1);
    row_of_.resize(choices.size());
    for (size_t i = 0; i < choices.size(); ++i) {
        const int32_t row = next_row_[static_cast<size_t>(choices[i].expert)]++;
        choice_of_[static_cast<size_t>(row)] = static_cast<int32_t>(i);
        row_of_[i] = row;
    }
}

int64_t ExpertRows::rows_of_tile(int64_t tile) const {
    int64_t rows = 0;
    while (rows < kRowTile && choice_of(tile * kRowTile + rows) >= 0) ++rows;
    return rows;
}

}  // namespace caudal
