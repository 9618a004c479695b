namespace caudal::CAUDAL_ISA {
static TokenKernels token_kernels() { return {}; }
}  // namespace caudal::CAUDAL_ISA
