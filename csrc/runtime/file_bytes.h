// Reading and writing a place in an open file, in full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace caudal {

// Where in an open file something begins.
struct FileLocation {
    int descriptor;
    int64_t offset;
};

// Throws std::runtime_error if the file ends before, or can't be read.
void read_all(FileLocation from, std::span<std::byte> out);
// Throws std::runtime_error if it can't be written: the disk is full.
void write_all(FileLocation to, std::span<const std::byte> bytes);

// A sum over bytes that is another one, all but certainly, if any of them changes. It tells damage
// from what was written, and withstands nobody who means harm.
uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace caudal
