#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "isa/kernel_table.h"

namespace caudal {

namespace portable {
const KernelTable& kernels();
}
#ifdef CAUDAL_X86
namespace avx2 {
const KernelTable& kernels();
}
namespace avx512 {
const KernelTable& kernels();
}
#endif

std::vector<const KernelTable*> runnable_kernels() {
    std::vector<const KernelTable*> tables;
#ifdef CAUDAL_X86
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vnni");
    if (avx2 && avx512) tables.push_back(&avx512::kernels());
    if (avx2) tables.push_back(&avx2::kernels());
#endif
    tables.push_back(&portable::kernels());
    return tables;
}

const KernelTable& select_kernels() {
    const std::vector<const KernelTable*> tables = runnable_kernels();
    const char* wanted = std::getenv("CAUDAL_ISA");
    if (wanted == nullptr || *wanted == '\0') return *tables.front();
    std::string names;
    for (const KernelTable* table : tables) {
        if (std::string_view(wanted) == table->name) return *table;
        names += names.empty() ? table->name : std::string(", ") + table->name;
    }
    throw std::invalid_argument("CAUDAL_ISA=" + std::string(wanted) +
                                " can't run on this machine; it has: " + names);
}

}  // namespace caudal
