#include "runtime/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace caudal {

namespace {

constexpr size_t aligned(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

size_t page_bytes() {
    static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

// Whole pages, as the system's calls want them.
struct Pages {
    char* begin;
    size_t size;
};

Pages whole_pages(std::span<const std::byte> part, uintptr_t rounded_up) {
    const auto first = reinterpret_cast<uintptr_t>(part.data());
    const uintptr_t page = page_bytes();
    const uintptr_t begin = (first + rounded_up) / page * page;
    const uintptr_t end = (first + part.size() + page - 1 - rounded_up) / page * page;
    return {reinterpret_cast<char*>(begin), end > begin ? end - begin : 0};
}

// The pages that a part touches.
Pages pages_around(std::span<const std::byte> part) {
    return whole_pages(part, 0);
}

// The pages that are all of a part.
Pages pages_within(std::span<const std::byte> part) {
    return whole_pages(part, page_bytes() - 1);
}

}  // namespace

Reservation::Reservation(size_t bytes, bool huge_pages) : size_(bytes) {
    if (bytes == 0) return;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
    flags |= MAP_NORESERVE;
#endif
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(data);
#ifdef MADV_HUGEPAGE
    if (huge_pages) madvise(data, bytes, MADV_HUGEPAGE);
#else
    (void)huge_pages;
#endif
}

Reservation::~Reservation() {
    if (data_ != nullptr) munmap(data_, size_);
}

Reservation::Reservation(Reservation&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping::Mapping(FileLocation from, size_t bytes)
    : file_{fcntl(from.descriptor, F_DUPFD_CLOEXEC, 0), from.offset}, size_(bytes) {
    if (bytes == 0) return;
    void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, from.descriptor, from.offset);
    if (data == MAP_FAILED) {
        if (file_.descriptor >= 0) close(file_.descriptor);
        throw std::runtime_error(std::string("can't map it: ") + strerror(errno));
    }
    data_ = static_cast<const std::byte*>(data);
#ifdef MADV_HUGEPAGE
    // Where a file system has large pages (ext4 from Linux 6.16 on, xfs), as large as possible.
    madvise(data, bytes, MADV_HUGEPAGE);
#endif
}

Mapping::~Mapping() {
    if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
    if (file_.descriptor >= 0) close(file_.descriptor);
}

Mapping::Mapping(Mapping&& other) noexcept
    : file_(std::exchange(other.file_, {-1, 0})),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

void Mapping::expect_random(const std::byte* begin, size_t size) const {
    const Pages pages = pages_within({begin, size});
    if (pages.size > 0) madvise(pages.begin, pages.size, MADV_RANDOM);
}

bool Mapping::is_in_memory(std::span<const std::byte> part) const {
#if defined(__linux__)
    const Pages pages = pages_around(part);
    for (const size_t at : {size_t{0}, pages.size - page_bytes()}) {
        unsigned char resident = 0;
        if (mincore(pages.begin + at, 1, &resident) != 0 || (resident & 1) == 0) return false;
    }
    return true;
#else
    (void)part;
    return false;
#endif
}

void Mapping::read_soon(std::span<const std::byte> part) const {
    // Linux reads no more than the device's read-ahead for one piece of advice, 128 KiB as a rule.
    constexpr size_t kAtOnce = size_t{128} << 10;
    const Pages pages = pages_around(part);
    for (size_t at = 0; at < pages.size; at += kAtOnce) {
        madvise(pages.begin + at, std::min(kAtOnce, pages.size - at), MADV_WILLNEED);
    }
}

void Mapping::read_now(std::span<const std::byte> part) const {
#ifdef MADV_POPULATE_READ
    const Pages pages = pages_around(part);
    if (madvise(pages.begin, pages.size, MADV_POPULATE_READ) == 0) return;
#endif
    read_soon(part);
}

void Mapping::let_go(std::span<const std::byte> part) const {
    const Pages pages = pages_within(part);
    if (pages.size == 0) return;
    madvise(pages.begin, pages.size, MADV_DONTNEED);  // the file's pages: nothing is lost
#ifdef POSIX_FADV_DONTNEED
    const auto offset = pages.begin - reinterpret_cast<const char*>(data_);
    posix_fadvise(file_.descriptor, file_.offset + offset, static_cast<off_t>(pages.size),
                  POSIX_FADV_DONTNEED);
#endif
}

Reservation reserve(const std::vector<size_t>& sizes) {
    size_t total = 0;
    for (const size_t size : sizes) total += aligned(size);
    return Reservation(total, /*huge_pages=*/true);
}

std::vector<std::span<std::byte>> split(std::span<std::byte> memory,
                                        const std::vector<size_t>& sizes) {
    std::vector<std::span<std::byte>> parts;
    for (const size_t size : sizes) {
        parts.push_back(memory.first(size));
        memory = memory.subspan(aligned(size));
    }
    return parts;
}

}  // namespace caudal
