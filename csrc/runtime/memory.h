// Memory from the system: anonymous, which costs nothing until it is touched, and of files.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "runtime/file_bytes.h"

namespace caudal {

// A zeroed region reserved from the kernel page by page: untouched parts take no memory. Move-only
// owner.
class Reservation {
  public:
    // `huge_pages` asks for 2 MiB pages (fewer TLB misses when streaming weights: 10 % of the read
    // bandwidth), at the price of touching memory in such steps.
    Reservation(size_t bytes, bool huge_pages);
    ~Reservation();
    Reservation(Reservation&& other) noexcept;
    Reservation& operator=(Reservation&&) = delete;
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;

    std::span<std::byte> bytes() const { return {data_, size_}; }

  private:
    std::byte* data_ = nullptr;
    size_t size_ = 0;
};

// Bytes of a file, mapped for reading: the system's copies of its pages themselves, which processes
// share and which it takes back when memory is short. They must stay as they are: of a file that is
// cut meanwhile, reading is a signal. Move-only owner.
class Mapping {
  public:
    // `from.offset` is a multiple of the system's page. Throws std::runtime_error if the file can't
    // be mapped.
    Mapping(FileLocation from, size_t bytes);
    ~Mapping();
    Mapping(Mapping&& other) noexcept;
    Mapping& operator=(Mapping&&) = delete;
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    std::span<const std::byte> bytes() const { return {data_, size_}; }

    // What follows is advice, about some of these bytes; where the system knows none of the kind,
    // nothing happens.

    // That they are needed here and there: nothing is to be read around what is needed.
    void expect_random(const std::byte* begin, size_t size) const;
    // Whether they seem to be in memory: their first page and their last.
    bool is_in_memory(std::span<const std::byte> part) const;
    // Begins to read them, and doesn't wait.
    void read_soon(std::span<const std::byte> part) const;
    // The same, in the system's largest pages, and waits for them where the system can do that.
    void read_now(std::span<const std::byte> part) const;
    // Frees the memory that they are in, unless other processes have them mapped.
    void let_go(std::span<const std::byte> part) const;

  private:
    FileLocation file_;  // a descriptor of our own
    const std::byte* data_ = nullptr;
    size_t size_ = 0;
};

// One piece of memory for parts of these sizes, each in cache lines of its own.
Reservation reserve(const std::vector<size_t>& sizes);

// Its parts.
std::vector<std::span<std::byte>> split(std::span<std::byte> memory,
                                        const std::vector<size_t>& sizes);

}  // namespace caudal
