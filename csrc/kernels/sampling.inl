namespace caudal::CAUDAL_ISA {
static SamplingKernels sampling_kernels() { return {}; }
}  // namespace caudal::CAUDAL_ISA
