#pragma once

namespace caudal {
struct TokenKernels {};
}  // namespace caudal
