// Philox4x32-10, the counter-based random number generator of Salmon, Moraes, Dror and Shaw,
// "Parallel Random Numbers: As Easy as 1, 2, 3" (SC '11): a block cipher over a counter. It has no
// state to carry from token to token, so a sequence can be moved, preempted or batched with others
// and still draw the same numbers.
#pragma once

#include <array>
#include <cstdint>

namespace caudal {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr PhiloxCounter philox4x32_10(PhiloxCounter counter, PhiloxKey key) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
        const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
        counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
                   static_cast<uint32_t>(product1),
                   static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
                   static_cast<uint32_t>(product0)};
        key[0] += 0x9E3779B9;  // golden ratio
        key[1] += 0xBB67AE85;  // sqrt(3) - 1
    }
    return counter;
}

// The random number of one token: uniform over the multiples of 2^-53 in (0, 1]. Zero is left out
// because a draw looks for the first token whose cumulative mass reaches it.
constexpr double philox_uniform(uint64_t seed, uint32_t stream, uint32_t step) {
    const PhiloxCounter bits = philox4x32_10(
        {step, stream, 0, 0}, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    const uint64_t integer = ((uint64_t{bits[1]} << 32) | bits[0]) >> 11;
    return static_cast<double>(integer + 1) * 0x1p-53;
}

}  // namespace caudal
