#include "runtime/memory.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace caudal {

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

}  // namespace caudal
