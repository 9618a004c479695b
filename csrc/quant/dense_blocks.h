// Blocks that hold codes more densely than one after the other: as indices into grids of
// combinations (the IQ1, IQ2 and IQ3 types), or five digits in a byte (TQ1_0).
#pragma once

#include <cstdint>

#include "quant/group.h"

namespace caudal {

// Each reads group `index`, 0 to 7, of a block of 256.
void read_iq1_s(const uint8_t* block, int index, Group& group);
void read_iq1_m(const uint8_t* block, int index, Group& group);
void read_iq2_xxs(const uint8_t* block, int index, Group& group);
void read_iq2_xs(const uint8_t* block, int index, Group& group);
void read_iq2_s(const uint8_t* block, int index, Group& group);
void read_iq3_xxs(const uint8_t* block, int index, Group& group);
void read_iq3_s(const uint8_t* block, int index, Group& group);
void read_tq1_0(const uint8_t* block, int index, Group& group);
void read_tq2_0(const uint8_t* block, int index, Group& group);

}  // namespace caudal
