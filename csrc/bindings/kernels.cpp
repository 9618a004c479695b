#include "bindings/bindings.h"

namespace nb = nanobind;

namespace caudal {

void bind_kernels(nb::module_& module) {
    module.def_submodule("kernels", "The kernels one by one, for tests and benchmarks.");
}

}  // namespace caudal
