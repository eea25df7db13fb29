// fusebench::pack_cpp: a weight in the layout of the instruction set in use.
#include "cpu.h"

namespace fusebench {
namespace {

Tensor pack(const Tensor& weight, bool gate_up) {
  const char* op = "pack";
  const DType dtype = dtype_of(op, "weight", weight);
  const ScalarType type = weight.scalar_type();
  const Tensor w = want(op, "weight", weight, type, {-1, -1});
  const int64_t n = w.size(0), k = w.size(1);
  if (gate_up && n % 2 != 0) {
    refuse(op, "weight", "has " + std::to_string(n) + " rows", "an even number with gate_up");
  }
  const size_t bytes = kernels().packed_bytes(dtype, n, k, gate_up);
  Tensor packed = empty(type, {int64_t(bytes / w.element_size())}, {1});
  kernels().pack(dtype, data_of(w), n, k, gate_up, packed.mutable_data_ptr(), torch_threads());
  return packed;
}

}  // namespace
}  // namespace fusebench

STABLE_TORCH_LIBRARY_IMPL(fusebench, CPU, m) { m.impl("pack_cpp", TORCH_BOX(&fusebench::pack)); }
