// Binding of fusebench::swiglu_ffn_cuda; see python/fusebench/ops/swiglu_ffn.py.
#include "cuda.h"

namespace fusebench::cuda {
namespace {
Tensor swiglu_ffn_cuda(const Tensor& x, const Tensor& w_gate_up, const Tensor& w_down,
                       const MaybeTensor& b_gate_up, const MaybeTensor& b_down,
                       const MaybeString& norm, const MaybeTensor& norm_weight,
                       const MaybeTensor& norm_bias, double eps, const MaybeTensor& residual) {
  const CudaCall call("swiglu_ffn", "x", x);
  call.require(x.dim() >= 1, "x", "a scalar", "[..., C]");
  call.check_rank("w_gate_up", w_gate_up, 2, "[2F, C]");
  call.require(w_gate_up.size(0) % 2 == 0, "w_gate_up", "shape " + shape_text(shape_of(w_gate_up)),
               "[2F, C]: gate rows, then as many up rows");
  const int64_t rows = rows_of(x), channels = x.size(x.dim() - 1), ffn = w_gate_up.size(0) / 2;
  const Tensor a = call.operand("x", x, shape_of(x));
  const Tensor gate_up = call.operand("w_gate_up", w_gate_up, {2 * ffn, channels});
  const Tensor down = call.operand("w_down", w_down, {channels, ffn});
  const MaybeTensor bias_gate_up = call.operand("b_gate_up", b_gate_up, {2 * ffn});
  const MaybeTensor bias_down = call.operand("b_down", b_down, {channels});
  const MaybeTensor r = call.operand("residual", residual, shape_of(x));
  const auto prologue = call.norm(norm, norm_weight, norm_bias, eps, rows, channels);
  Tensor out = call.empty(shape_of(x));
  if (out.numel() == 0) return out;
  Tensor hidden = call.empty({rows, ffn});
  swiglu_ffn(
      {a.const_data_ptr(), gate_up.const_data_ptr(), down.const_data_ptr(), call.data(bias_gate_up),
       call.data(bias_down), call.data(r), hidden.data_ptr(), out.data_ptr(), call.size("x", rows),
       call.size("x", channels), call.size("w_gate_up", 2 * ffn) / 2, prologue.norm},
      call.dtype(), call.stream());
  return out;
}
}  // namespace
}  // namespace fusebench::cuda

STABLE_TORCH_LIBRARY_IMPL(fusebench, FUSEBENCH_CUDA_KEY, m) {
  m.impl("swiglu_ffn_cuda", TORCH_BOX(&fusebench::cuda::swiglu_ffn_cuda));
}
