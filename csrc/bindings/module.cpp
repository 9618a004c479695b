#include "bindings/bindings.h"

NB_MODULE(_native, module) {
    caudal::bind_kernels(module);
    caudal::bind_runtime(module);
}
