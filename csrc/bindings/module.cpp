#include "bindings/bindings.h"

NB_MODULE(_native, module) {
    // A model that lives until the interpreter exits is no leak worth a page of warnings.
    nanobind::set_leak_warnings(false);
    caudal::bind_kernels(module);
    caudal::bind_conversion(module);
    caudal::bind_sampling(module);
    caudal::bind_program(module);
    caudal::bind_runtime(module);
    caudal::bind_turns(module);
}
