// The kernel table of one instruction set, and the packed form of its weights.
#include "gemm.h"
#include "ops.h"

namespace fusebench {
namespace FUSEBENCH_ISA {

namespace {

#define FUSEBENCH_NAME_OF(x) #x
#define FUSEBENCH_NAME(x) FUSEBENCH_NAME_OF(x)

// In front of a packed weight, so that one made elsewhere is recognised. Instruction sets with
// the same width and operand share a layout.
struct Header {
  char magic[8];
  int32_t version, width, operand_bytes, gate_up;
  int64_t n, k;
};
static_assert(sizeof(Header) <= Weight<float>::kHeader, "the panels start behind the header");

template <class T>
Header header_of(int64_t n, int64_t k, bool gate_up) {
  return {{'f', 'b', 'p', 'a', 'c', 'k', 0, 0}, 1, kW, sizeof(Operand<T>), gate_up, n, k};
}

template <class T>
void pack_weight(const void* weight, int64_t n, int64_t k, bool gate_up, void* packed,
                 const Parallel& parallel) {
  const Weight<T> w(weight, n, k, gate_up, packed);
  const Header header = header_of<T>(n, k, gate_up);
  std::memset(packed, 0, Weight<T>::kHeader);
  std::memcpy(packed, &header, sizeof header);
  const int64_t tasks[] = {ceil_div<int64_t>(w.columns(), kNR)};
  run_phases(parallel, int(min_of<int64_t>(parallel.threads, tasks[0])), tasks,
             [&](int, int64_t p, int) {
               w.pack_panel(p * kNR, const_cast<Operand<T>*>(w.packed) + p * w.panel_size());
             });
}

template <class T>
const char* check(const void* packed, size_t bytes, int64_t n, int64_t k, bool gate_up) {
  Header got;
  const Header want = header_of<T>(n, k, gate_up);
  if (bytes < sizeof got) return "is not a packed weight";
  std::memcpy(&got, packed, sizeof got);
  if (std::memcmp(got.magic, want.magic, sizeof got.magic) != 0 || got.version != want.version)
    return "is not a packed weight of this version";
  if (got.width != want.width || got.operand_bytes != want.operand_bytes)
    return "was packed for another instruction set or dtype";
  if (got.n != n || got.k != k) return "was packed from a weight of another shape";
  if (got.gate_up != want.gate_up) return "was packed with another gate_up";
  if (bytes < Weight<T>(nullptr, n, k, gate_up, nullptr).packed_bytes()) return "is cut short";
  return nullptr;
}

size_t packed_bytes(DType dtype, int64_t n, int64_t k, bool gate_up) {
  return dtype == DType::float32 ? Weight<float>(nullptr, n, k, gate_up, nullptr).packed_bytes()
                                 : Weight<bf16>(nullptr, n, k, gate_up, nullptr).packed_bytes();
}

void pack(DType dtype, const void* weight, int64_t n, int64_t k, bool gate_up, void* packed,
          const Parallel& parallel) {
  dtype == DType::float32 ? pack_weight<float>(weight, n, k, gate_up, packed, parallel)
                          : pack_weight<bf16>(weight, n, k, gate_up, packed, parallel);
}

const char* check_packed(DType dtype, const void* packed, size_t bytes, int64_t n, int64_t k,
                         bool gate_up) {
  return dtype == DType::float32 ? check<float>(packed, bytes, n, k, gate_up)
                                 : check<bf16>(packed, bytes, n, k, gate_up);
}

}  // namespace

extern const Kernels table = {FUSEBENCH_NAME(FUSEBENCH_ISA),
                              embedding,
                              qkv_proj,
                              sdpa,
                              linear,
                              swiglu_ffn,
                              packed_bytes,
                              pack,
                              check_packed,
                              peak_flops,
                              read_bandwidth};

}  // namespace FUSEBENCH_ISA
}  // namespace fusebench
