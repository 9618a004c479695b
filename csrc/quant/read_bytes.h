// Little-endian numbers anywhere in a block.
#pragma once

#include <cstdint>
#include <cstring>

namespace caudal {

inline uint16_t read_u16(const uint8_t* bytes) {
    uint16_t value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
}

inline uint32_t read_u32(const uint8_t* bytes) {
    uint32_t value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
}

}  // namespace caudal
