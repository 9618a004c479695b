namespace caudal::CAUDAL_ISA {
static LinearKernels linear_kernels() { return {}; }
}  // namespace caudal::CAUDAL_ISA
