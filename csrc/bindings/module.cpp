#include "bindings/bindings.h"

NB_MODULE(_native, module) {
    caudal::bind_kernels(module);
    caudal::bind_sampling(module);
    caudal::bind_runtime(module);
}
