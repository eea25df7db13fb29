// fusebench::swiglu_ffn_cpp and swiglu_ffn_cpp_packed
#include "cpu.h"

namespace fusebench {
namespace {

Tensor run(const Tensor& x, const Tensor& w_gate_up, const Tensor& w_down,
           const OptionalTensor& b_gate_up, const OptionalTensor& b_down,
           const std::optional<std::string>& norm, const OptionalTensor& norm_weight,
           const OptionalTensor& norm_bias, double eps, const OptionalTensor& residual,
           const OptionalTensor& packed_gate_up, const OptionalTensor& packed_down) {
  const char* op = "swiglu_ffn";
  const DType dtype = dtype_of(op, "x", x);
  const ScalarType type = x.scalar_type();
  const Rows rows = rows_of(op, x);
  const int64_t k = rows.width;
  const Tensor up = want(op, "w_gate_up", w_gate_up, type, {-1, k});
  if (up.size(0) % 2 != 0 || up.size(0) == 0) {
    refuse(op, "w_gate_up", "has " + std::to_string(up.size(0)) + " rows",
           "an even number, at least 2: gate rows, then up rows");
  }
  const int64_t hidden = up.size(0) / 2;
  const Tensor down = want(op, "w_down", w_down, type, {-1, hidden});
  const int64_t n = down.size(0);
  const OptionalTensor bu = want(op, "b_gate_up", b_gate_up, type, {2 * hidden});
  const OptionalTensor bd = want(op, "b_down", b_down, type, {n});
  const OptionalTensor r = want_like(op, "residual", residual, x, n);
  const NormArguments norms(op, x, k, norm, norm_weight, norm_bias, eps);
  Tensor out = empty_rows(x, n);
  if (out.numel() == 0) return out;
  const SwigluFfnArgs args{
      data_of(rows.x),
      data_of(up),
      data_of(down),
      packed_data(op, "packed_w_gate_up", packed_gate_up, dtype, 2 * hidden, k, true),
      packed_data(op, "packed_w_down", packed_down, dtype, n, hidden, false),
      data_of(bu),
      data_of(bd),
      data_of(r),
      out.mutable_data_ptr(),
      rows.rows,
      n,
      k,
      hidden,
      norms.prologue};
  kernels().swiglu_ffn(dtype, args, torch_threads());
  return out;
}

Tensor swiglu_ffn(const Tensor& x, const Tensor& w_gate_up, const Tensor& w_down,
                  const OptionalTensor& b_gate_up, const OptionalTensor& b_down,
                  const std::optional<std::string>& norm, const OptionalTensor& norm_weight,
                  const OptionalTensor& norm_bias, double eps, const OptionalTensor& residual) {
  return run(x, w_gate_up, w_down, b_gate_up, b_down, norm, norm_weight, norm_bias, eps, residual,
             std::nullopt, std::nullopt);
}

Tensor swiglu_ffn_packed(const Tensor& x, const Tensor& w_gate_up, const Tensor& w_down,
                         const OptionalTensor& b_gate_up, const OptionalTensor& b_down,
                         const std::optional<std::string>& norm, const OptionalTensor& norm_weight,
                         const OptionalTensor& norm_bias, double eps,
                         const OptionalTensor& residual, const Tensor& packed_gate_up,
                         const Tensor& packed_down) {
  return run(x, w_gate_up, w_down, b_gate_up, b_down, norm, norm_weight, norm_bias, eps, residual,
             packed_gate_up, packed_down);
}

}  // namespace
}  // namespace fusebench

STABLE_TORCH_LIBRARY_IMPL(fusebench, CPU, m) {
  m.impl("swiglu_ffn_cpp", TORCH_BOX(&fusebench::swiglu_ffn));
  m.impl("swiglu_ffn_cpp_packed", TORCH_BOX(&fusebench::swiglu_ffn_packed));
}
