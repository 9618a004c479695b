#include "runtime/file_bytes.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace caudal {

void read_all(FileLocation from, std::span<std::byte> out) {
    while (!out.empty()) {
        const ssize_t count = pread(from.descriptor, out.data(), out.size(), from.offset);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) throw std::runtime_error(std::string("can't read it: ") + strerror(errno));
        if (count == 0) {
            throw std::runtime_error(
                "it was cut or replaced while it was being read: it ends at byte " +
                std::to_string(from.offset));
        }
        from.offset += count;
        out = out.subspan(static_cast<size_t>(count));
    }
}

void write_all(FileLocation to, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t count = pwrite(to.descriptor, bytes.data(), bytes.size(), to.offset);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) throw std::runtime_error(std::string("can't write: ") + strerror(errno));
        to.offset += count;
        bytes = bytes.subspan(static_cast<size_t>(count));
    }
}

uint64_t checksum(std::span<const std::byte> bytes) {
    // Four chains, so that they aren't slower than memory. Factors are odd, so that every step is
    // one-to-one: two inputs that differ in a word never meet again within a chain.
    constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;  // 2^64 over the golden ratio
    constexpr size_t kChains = 4;
    std::array<uint64_t, kChains> chains{1, 2, 3, 4};
    const auto step = [](uint64_t chain, uint64_t word) {
        chain = (chain ^ word) * kFactor;
        return chain ^ (chain >> 29);
    };
    size_t at = 0;
    for (; at + sizeof(chains) <= bytes.size(); at += sizeof(chains)) {
        std::array<uint64_t, kChains> words;
        std::memcpy(words.data(), bytes.data() + at, sizeof(words));
        for (size_t i = 0; i < kChains; ++i) chains[i] = step(chains[i], words[i]);
    }
    std::array<uint64_t, kChains> rest{};
    std::memcpy(rest.data(), bytes.data() + at, bytes.size() - at);
    uint64_t sum = bytes.size();
    for (size_t i = 0; i < kChains; ++i) sum = step(sum, step(chains[i], rest[i]));
    return sum;
}

}  // namespace caudal
