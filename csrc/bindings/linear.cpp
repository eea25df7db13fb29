// fusebench::linear_cpp and linear_cpp_packed
#include "cpu.h"

namespace fusebench {
namespace {

Tensor run(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
           const OptionalTensor& residual, const std::optional<std::string>& norm,
           const OptionalTensor& norm_weight, const OptionalTensor& norm_bias, double eps,
           const OptionalTensor& packed) {
  const char* op = "linear";
  const DType dtype = dtype_of(op, "x", x);
  const ScalarType type = x.scalar_type();
  const Rows rows = rows_of(op, x);
  const Tensor w = want(op, "weight", weight, type, {-1, rows.width});
  const int64_t n = w.size(0);
  const OptionalTensor b = want(op, "bias", bias, type, {n});
  const OptionalTensor r = want_like(op, "residual", residual, x, n);
  const NormArguments norms(op, x, rows.width, norm, norm_weight, norm_bias, eps);
  Tensor out = empty_rows(x, n);
  if (out.numel() == 0) return out;
  const LinearArgs args{data_of(rows.x),
                        data_of(w),
                        packed_data(op, "packed_weight", packed, dtype, n, rows.width, false),
                        data_of(b),
                        data_of(r),
                        out.mutable_data_ptr(),
                        rows.rows,
                        n,
                        rows.width,
                        norms.prologue};
  kernels().linear(dtype, args, torch_threads());
  return out;
}

Tensor linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
              const OptionalTensor& residual, const std::optional<std::string>& norm,
              const OptionalTensor& norm_weight, const OptionalTensor& norm_bias, double eps) {
  return run(x, weight, bias, residual, norm, norm_weight, norm_bias, eps, std::nullopt);
}

Tensor linear_packed(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                     const OptionalTensor& residual, const std::optional<std::string>& norm,
                     const OptionalTensor& norm_weight, const OptionalTensor& norm_bias, double eps,
                     const Tensor& packed) {
  return run(x, weight, bias, residual, norm, norm_weight, norm_bias, eps, packed);
}

}  // namespace
}  // namespace fusebench

STABLE_TORCH_LIBRARY_IMPL(fusebench, CPU, m) {
  m.impl("linear_cpp", TORCH_BOX(&fusebench::linear));
  m.impl("linear_cpp_packed", TORCH_BOX(&fusebench::linear_packed));
}
