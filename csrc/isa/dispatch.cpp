#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "isa/kernel_table.h"
#if defined(CAUDAL_ARM64) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(CAUDAL_ARM64) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace caudal {

namespace portable {
const KernelTable& kernels();
}
#if defined(CAUDAL_X86)
namespace avx2 {
const KernelTable& kernels();
}
namespace avx512 {
const KernelTable& kernels();
}
#elif defined(CAUDAL_ARM64)
namespace neon_dotprod {
const KernelTable& kernels();
}
namespace neon_i8mm {
const KernelTable& kernels();
}
#endif

namespace {

#if defined(CAUDAL_X86)

void add_tables(std::vector<const KernelTable*>& tables) {
    // F16C comes with every AVX2; not all compilers know how to ask for it.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("bmi2");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vnni");
    if (avx2 && avx512) tables.push_back(&avx512::kernels());
    if (avx2) tables.push_back(&avx2::kernels());
}

#elif defined(CAUDAL_ARM64)

struct ArmExtensions {
    bool dotprod = false;
    bool i8mm = false;
};

#if defined(__linux__)

ArmExtensions arm_extensions() {
    // HWCAP_ASIMDDP and HWCAP2_I8MM of the kernel's interface; older headers don't have them yet.
    constexpr unsigned long kDotprod = 1ul << 20;
    constexpr unsigned long kI8mm = 1ul << 13;
    return {(getauxval(AT_HWCAP) & kDotprod) != 0, (getauxval(AT_HWCAP2) & kI8mm) != 0};
}

#elif defined(__APPLE__)

ArmExtensions arm_extensions() {
    const auto has = [](const char* name) {
        int value = 0;
        size_t size = sizeof(value);
        return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
    };
    return {has("hw.optional.arm.FEAT_DotProd"), has("hw.optional.arm.FEAT_I8MM")};
}

#else

ArmExtensions arm_extensions() {
    return {};
}

#endif

void add_tables(std::vector<const KernelTable*>& tables) {
    const ArmExtensions extensions = arm_extensions();
    if (extensions.dotprod && extensions.i8mm) tables.push_back(&neon_i8mm::kernels());
    if (extensions.dotprod) tables.push_back(&neon_dotprod::kernels());
}

#else

void add_tables(std::vector<const KernelTable*>& /*tables*/) {}

#endif

}  // namespace

std::vector<const KernelTable*> runnable_kernels() {
    std::vector<const KernelTable*> tables;
    add_tables(tables);
    tables.push_back(&portable::kernels());
    return tables;
}

const KernelTable& select_kernels() {
    const std::vector<const KernelTable*> tables = runnable_kernels();
    const char* chosen = std::getenv("CAUDAL_ISA");
    if (chosen == nullptr || *chosen == '\0') return *tables.front();
    std::string names;
    for (const KernelTable* table : tables) {
        if (std::string_view(chosen) == table->name) return *table;
        names += names.empty() ? table->name : std::string(", ") + table->name;
    }
    throw std::invalid_argument("CAUDAL_ISA=" + std::string(chosen) +
                                " can't run on this machine; it has: " + names);
}

}  // namespace caudal
