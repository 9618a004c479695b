#include "quant/dense_blocks.h"

#include <bit>

#include "quant/grids.h"
#include "quant/read_bytes.h"

namespace caudal {
namespace {

// The signs of eight numbers, of which seven are stored: the number of minus signs is even.
uint32_t even_signs(uint32_t seven) {
    return seven | static_cast<uint32_t>(std::popcount(seven) % 2) << 7;
}

// Eight digits of a grid with three magnitudes, as codes: plus 4 where the sign bit is set.
void put_three(uint32_t entry, uint32_t signs, uint8_t* codes) {
    for (int i = 0; i < 8; ++i) {
        codes[i] = static_cast<uint8_t>((entry >> (2 * i) & 3) | (signs >> i & 1) << 2);
    }
}

// Four digits of a grid with eight magnitudes: plus 8 where the sign bit is set.
void put_eight(uint32_t entry, uint32_t signs, uint8_t* codes) {
    for (int i = 0; i < 4; ++i) {
        codes[i] = static_cast<uint8_t>((entry >> (3 * i) & 7) | (signs >> i & 1) << 3);
    }
}

// Factors of the grids' types are odd: 1, 3, 5, …
int8_t odd_factor(uint32_t index) {
    return static_cast<int8_t>(2 * index + 1);
}

void put_factors(uint32_t first, uint32_t second, Group& group) {
    group.factor[0] = odd_factor(first);
    group.factor[1] = odd_factor(second);
}

}  // namespace

// Byte offsets within a block, and bit positions, are those of the GGUF format's definition.

void read_iq1_s(const uint8_t* block, int index, Group& group) {
    const uint32_t high = read_u16(block + 34 + index * 2);
    for (int part = 0; part < 4; ++part) {
        const uint32_t entry = block[2 + index * 4 + part] | (high >> (3 * part) & 7) << 8;
        put_three(kIq1Grid[entry], 0, group.codes + part * 8);
    }
    const int factor = odd_factor(high >> 12 & 7);
    put_factors(high >> 12 & 7, high >> 12 & 7, group);
    // Digits are less 1, plus or minus 1/8: 7/8 or 9/8 of the factor is subtracted.
    const int eighths = high >> 15 == 0 ? 7 : 9;
    group.minimum_factor[0] = group.minimum_factor[1] = static_cast<uint8_t>(factor * eighths);
    group.scale = group.minimum = read_u16(block);
}

void read_iq1_m(const uint8_t* block, int index, Group& group) {
    for (int part = 0; part < 4; ++part) {
        const uint32_t high = block[32 + index * 2 + part / 2] >> (part % 2 * 4);
        const uint32_t entry = block[index * 4 + part] | (high & 7) << 8;
        const uint32_t below = high >> 3 & 1;  // whether the eighth is subtracted
        put_three(kIq1Grid[entry], below * 0xff, group.codes + part * 8);
    }
    const uint32_t factors = read_u16(block + 48 + index / 2 * 2) >> (index % 2 * 6);
    put_factors(factors & 7, factors >> 3 & 7, group);
    uint32_t scale = 0;  // four bits on top of each of the factors' words
    for (int word = 0; word < 4; ++word) {
        scale |= static_cast<uint32_t>(read_u16(block + 48 + word * 2) >> 12) << (4 * word);
    }
    group.scale = static_cast<uint16_t>(scale);
}

void read_iq2_xxs(const uint8_t* block, int index, Group& group) {
    const uint8_t* entries = block + 2 + index * 8;
    const uint32_t signs = read_u32(entries + 4);
    for (int part = 0; part < 4; ++part) {
        put_three(kIq2XxsGrid[entries[part]], even_signs(signs >> (7 * part) & 127),
                  group.codes + part * 8);
    }
    put_factors(signs >> 28, signs >> 28, group);
    group.scale = read_u16(block);
}

void read_iq2_xs(const uint8_t* block, int index, Group& group) {
    for (int part = 0; part < 4; ++part) {
        const uint32_t word = read_u16(block + 2 + index * 8 + part * 2);
        put_three(kIq2XsGrid[word & 511], even_signs(word >> 9), group.codes + part * 8);
    }
    put_factors(block[66 + index] & 15, block[66 + index] >> 4, group);
    group.scale = read_u16(block);
}

void read_iq2_s(const uint8_t* block, int index, Group& group) {
    for (int part = 0; part < 4; ++part) {
        const uint32_t high = block[66 + index] >> (2 * part) & 3u;
        put_three(kIq2SGrid[block[2 + index * 4 + part] | high << 8], block[34 + index * 4 + part],
                  group.codes + part * 8);
    }
    put_factors(block[74 + index] & 15, block[74 + index] >> 4, group);
    group.scale = read_u16(block);
}

void read_iq3_xxs(const uint8_t* block, int index, Group& group) {
    const uint32_t signs = read_u32(block + 66 + index * 4);
    for (int part = 0; part < 8; ++part) {
        const uint32_t eight = even_signs(signs >> (7 * (part / 2)) & 127);
        put_eight(kIq3XxsGrid[block[2 + index * 8 + part]], eight >> (part % 2 * 4),
                  group.codes + part * 4);
    }
    put_factors(signs >> 28, signs >> 28, group);
    group.scale = read_u16(block);
}

void read_iq3_s(const uint8_t* block, int index, Group& group) {
    for (int part = 0; part < 8; ++part) {
        const uint32_t high = block[66 + index] >> part & 1u;
        const uint32_t signs = block[74 + index * 4 + part / 2] >> (part % 2 * 4);
        put_eight(kIq3SGrid[block[2 + index * 8 + part] | high << 8], signs,
                  group.codes + part * 4);
    }
    const uint32_t factor = block[106 + index / 2] >> (index % 2 * 4) & 15;
    put_factors(factor, factor, group);
    group.scale = read_u16(block);
}

// Five digits to a byte, which stands for digits · 3^5 / 256, rounded up: each is what comes out on
// top when it is multiplied by three once more.
void read_tq1_0(const uint8_t* block, int index, Group& group) {
    constexpr uint8_t powers[] = {1, 3, 9, 27, 81};
    for (int i = 0; i < 32; ++i) {
        const int element = index * 32 + i;
        int byte, power;
        if (element < 160) {
            byte = element % 32;
            power = element / 32;
        } else if (element < 240) {
            byte = 32 + element % 16;
            power = (element - 160) / 16;
        } else {
            byte = 48 + element % 4;
            power = (element - 240) / 4;
        }
        const auto digits = static_cast<uint8_t>(block[byte] * powers[power]);
        group.codes[i] = static_cast<uint8_t>(digits * 3 >> 8);
    }
    group.scale = read_u16(block + 52);
}

void read_tq2_0(const uint8_t* block, int index, Group& group) {
    const uint8_t* codes = block + index / 4 * 32;
    for (int i = 0; i < 32; ++i) group.codes[i] = codes[i] >> (index % 4 * 2) & 3;
    group.scale = read_u16(block + 64);
}

}  // namespace caudal
