// Which instruction sets this library was compiled for, which this CPU has, and the one in use.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fusebench {

// Best first. CMake defines FUSEBENCH_HAVE_<ISA> for what the compiler can build.
#define FUSEBENCH_DECLARE(ISA) \
  namespace ISA {              \
  extern const Kernels table;  \
  }
#ifdef FUSEBENCH_HAVE_AMX
FUSEBENCH_DECLARE(amx)
#endif
#ifdef FUSEBENCH_HAVE_AVX512_BF16
FUSEBENCH_DECLARE(avx512_bf16)
#endif
#ifdef FUSEBENCH_HAVE_AVX512
FUSEBENCH_DECLARE(avx512)
#endif
#ifdef FUSEBENCH_HAVE_AVX2
FUSEBENCH_DECLARE(avx2)
#endif
FUSEBENCH_DECLARE(portable)

namespace {

const Kernels* const compiled[] = {
#ifdef FUSEBENCH_HAVE_AMX
    &amx::table,
#endif
#ifdef FUSEBENCH_HAVE_AVX512_BF16
    &avx512_bf16::table,
#endif
#ifdef FUSEBENCH_HAVE_AVX512
    &avx512::table,
#endif
#ifdef FUSEBENCH_HAVE_AVX2
    &avx2::table,
#endif
    &portable::table,
};

constexpr const char* kAccepted = "amx, avx512_bf16, avx512, avx2, portable";

#if defined(__x86_64__)
bool cpuid_bit(int subleaf, int reg, int bit) {
  unsigned r[4] = {0, 0, 0, 0};
  return __get_cpuid_count(7, subleaf, &r[0], &r[1], &r[2], &r[3]) && (r[reg] >> bit & 1);
}
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
bool has_avx512_bf16() { return has_avx512() && cpuid_bit(1, 0, 5); }
bool has_amx() {
  // Linux hands the tile registers out on request, once for the whole process.
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  static const bool granted = has_avx512_bf16() && cpuid_bit(0, 3, 22) && cpuid_bit(0, 3, 24) &&
                              syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
bool has_avx512_bf16() { return false; }
bool has_amx() { return false; }
#endif

const Kernels* find(const char* isa) {
  for (const Kernels* k : compiled) {
    if (std::strcmp(k->isa, isa) == 0) return k;
  }
  return nullptr;
}

const Kernels* require(const char* isa, const char* source) {
  std::string accepted;
  for (const Kernels* k : compiled) {
    if (isa_supported(k->isa)) accepted += (accepted.empty() ? "" : ", ") + std::string(k->isa);
  }
  const Kernels* k = find(isa);
  if (k != nullptr && isa_supported(isa)) return k;
  bool known = false;
  for (const char* name : {"amx", "avx512_bf16", "avx512", "avx2", "portable"}) {
    known = known || std::strcmp(name, isa) == 0;
  }
  const std::string what = std::string(source) + ": '" + isa + "'";
  if (!known) {
    throw std::runtime_error(what + " is not an instruction set; accepted: " + kAccepted);
  }
  throw std::runtime_error(what + (k ? " is not supported by this CPU" : " was not compiled in") +
                           "; usable here: " + accepted);
}

std::atomic<const Kernels*> in_use{nullptr};

}  // namespace

bool isa_supported(const char* isa) {
  if (std::strcmp(isa, "amx") == 0) return has_amx();
  if (std::strcmp(isa, "avx512_bf16") == 0) return has_avx512_bf16();
  if (std::strcmp(isa, "avx512") == 0) return has_avx512();
  if (std::strcmp(isa, "avx2") == 0) return has_avx2();
  return std::strcmp(isa, "portable") == 0;
}

const Kernels* compiled_isa(int i) {
  return i >= 0 && i < int(sizeof(compiled) / sizeof(compiled[0])) ? compiled[i] : nullptr;
}

void use_isa(const char* isa) { in_use.store(require(isa, "instruction set")); }

const Kernels& kernels() {
  const Kernels* k = in_use.load(std::memory_order_acquire);
  if (k != nullptr) return *k;
  const char* forced = std::getenv("FUSEBENCH_CPU_ISA");
  if (forced != nullptr && *forced != '\0') {
    k = require(forced, "FUSEBENCH_CPU_ISA");
  } else {
    for (const Kernels* candidate : compiled) {
      if (isa_supported(candidate->isa)) {
        k = candidate;
        break;
      }
    }
  }
  in_use.store(k, std::memory_order_release);
  return *k;
}

}  // namespace fusebench
