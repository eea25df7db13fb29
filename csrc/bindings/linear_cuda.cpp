// Binding of fusebench::linear_cuda; shapes and meaning are in python/fusebench/ops/linear.py.
#include "cuda.h"

namespace fusebench::cuda {
namespace {
Tensor linear_cuda(const Tensor& x, const Tensor& weight, const MaybeTensor& bias,
                   const MaybeTensor& residual, const MaybeString& norm,
                   const MaybeTensor& norm_weight, const MaybeTensor& norm_bias, double eps) {
  const CudaCall call("linear", "x", x);
  call.require(x.dim() >= 1, "x", "a scalar", "[..., C]");
  call.check_rank("weight", weight, 2, "[N, C]");
  const int64_t rows = rows_of(x), k = x.size(x.dim() - 1), n = weight.size(0);
  const std::vector<int64_t> out_shape = with_last(shape_of(x), n);
  const Tensor a = call.operand("x", x, shape_of(x)), w = call.operand("weight", weight, {n, k});
  const MaybeTensor b = call.operand("bias", bias, {n});
  const MaybeTensor r = call.operand("residual", residual, out_shape);
  const auto prologue = call.norm(norm, norm_weight, norm_bias, eps, rows, k);
  Tensor out = call.empty(out_shape);
  if (out.numel() == 0) return out;
  linear({a.const_data_ptr(), w.const_data_ptr(), call.data(b), call.data(r), out.data_ptr(),
          call.size("x", rows), call.size("weight", n), call.size("x", k), prologue.norm},
         call.dtype(), call.stream());
  return out;
}
}  // namespace
}  // namespace fusebench::cuda

STABLE_TORCH_LIBRARY_IMPL(fusebench, FUSEBENCH_CUDA_KEY, m) {
  m.impl("linear_cuda", TORCH_BOX(&fusebench::cuda::linear_cuda));
}
