// A tensor's elements as those of another type, by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/quantise.h"
#include "quant/tensor_type.h"

namespace caudal {

// Writes the `count` elements of `source` to `out` as another type. What they become doesn't depend
// on the number of threads. Where the system doesn't let so many start, fewer do it.
//
// Returns false if an element isn't finite, or is beyond what the type can hold.
//
// Throws std::invalid_argument if `to` isn't written, or `source`, `out` or whole blocks don't
// match `count`.
bool convert_elements(const QuantiseKernels& kernels, TensorType from,
                      std::span<const std::byte> source, TensorType to, std::span<std::byte> out,
                      int64_t count, int threads);

}  // namespace caudal
