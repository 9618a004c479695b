#include "bindings/bindings.h"
#include "isa/kernel_table.h"

namespace nb = nanobind;

namespace caudal {

void bind_runtime(nb::module_& module) {
    module.def(
        "instruction_set", [] { return select_kernels().name; },
        "Name of the kernels that run on this machine.");
}

}  // namespace caudal
