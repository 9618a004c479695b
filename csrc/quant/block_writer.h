// Writes the blocks of GGUF's quantised types from codes and scales that somebody has chosen: the
// inverse of group.h. Scales are rounded as the format keeps them, and what they are afterwards is
// told, so that codes can be chosen again for that.
#pragma once

#include <cstdint>

#include "quant/tensor_type.h"

namespace caudal {

constexpr int64_t kSuperBlock = 256;
constexpr int64_t kMostGroups = 16;  // of a superblock

// Of each group of a superblock: value = step · code − offset, with codes from the lowest that the
// type has, which may be negative.
struct GroupScales {
    float step[kMostGroups] = {};
    float offset[kMostGroups] = {};  // 0 where a type has no minima
};

// Writes `value` in half precision. Says whether it is finite there.
bool write_half(float value, uint8_t* out);

// Writes the scales, and minima, of a superblock of a K type. `scales` becomes what they stand for
// then. Says whether all of it is finite.
bool write_group_scales(TensorType type, GroupScales& scales, uint8_t* block);

// Writes a block's codes, counted from 0: of the K types 256, of Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0
// 32 (of the last they are signed bytes).
void write_codes(TensorType type, const uint8_t* codes, uint8_t* block);

}  // namespace caudal
