#pragma once

namespace caudal {
struct SamplingKernels {};
}  // namespace caudal
