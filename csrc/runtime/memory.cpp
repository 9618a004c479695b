#include "runtime/memory.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace caudal {

namespace {

constexpr size_t aligned(size_t bytes) {
    return (bytes + 63) / 64 * 64;
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
