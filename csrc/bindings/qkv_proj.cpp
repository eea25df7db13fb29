// fusebench::qkv_proj_cpp and qkv_proj_cpp_packed
#include <tuple>

#include "cpu.h"

namespace fusebench {
namespace {

using Qkv = std::tuple<Tensor, Tensor, Tensor>;

Qkv run(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, int64_t num_heads,
        int64_t num_kv_heads, const std::optional<std::string>& norm,
        const OptionalTensor& norm_weight, const OptionalTensor& norm_bias, double eps,
        const OptionalTensor& cos, const OptionalTensor& sin, const OptionalTensor& packed) {
  const char* op = "qkv_proj";
  const DType dtype = dtype_of(op, "x", x);
  const ScalarType type = x.scalar_type();
  const Tensor rows = want(op, "x", x, type, {-1, -1, -1});
  const int64_t batch = rows.size(0), seq = rows.size(1), width = rows.size(2);
  const Tensor w = want(op, "weight", weight, type, {-1, width});
  if (num_heads < 1) refuse(op, "num_heads", "is " + std::to_string(num_heads), "a count >= 1");
  if (num_kv_heads < 1 || num_heads % num_kv_heads != 0) {
    refuse(op, "num_kv_heads", "is " + std::to_string(num_kv_heads),
           "a divisor of num_heads, " + std::to_string(num_heads));
  }
  const int64_t heads = num_heads + 2 * num_kv_heads, n = w.size(0), d = n / heads;
  if (n % heads != 0 || d == 0) {
    refuse(op, "weight", "has " + std::to_string(n) + " rows",
           "a multiple of num_heads + 2 * num_kv_heads, " + std::to_string(heads));
  }
  if (cos.has_value() != sin.has_value()) refuse(op, "cos", "or sin is None alone", "both or none");
  if (cos && d % 2 != 0) {
    refuse(op, "weight", "makes head_dim " + std::to_string(d),
           "an even head_dim with cos and sin");
  }
  const OptionalTensor b = want(op, "bias", bias, type, {n});
  const OptionalTensor c = want(op, "cos", cos, ScalarType::Float, {seq, d / 2});
  const OptionalTensor s = want(op, "sin", sin, ScalarType::Float, {seq, d / 2});
  const NormArguments norms(op, x, width, norm, norm_weight, norm_bias, eps);
  const auto output = [&](int64_t h) {
    return empty(type, {batch, h, seq, d}, {h * seq * d, seq * d, d, 1});
  };
  Qkv out{output(num_heads), output(num_kv_heads), output(num_kv_heads)};
  if (batch * seq == 0) return out;
  const QkvProjArgs args{data_of(rows),
                         data_of(w),
                         packed_data(op, "packed_weight", packed, dtype, n, width, false),
                         data_of(b),
                         static_cast<const float*>(data_of(c)),
                         static_cast<const float*>(data_of(s)),
                         std::get<0>(out).mutable_data_ptr(),
                         std::get<1>(out).mutable_data_ptr(),
                         std::get<2>(out).mutable_data_ptr(),
                         batch,
                         seq,
                         width,
                         num_heads,
                         num_kv_heads,
                         d,
                         norms.prologue};
  kernels().qkv_proj(dtype, args, torch_threads());
  return out;
}

Qkv qkv_proj(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, int64_t num_heads,
             int64_t num_kv_heads, const std::optional<std::string>& norm,
             const OptionalTensor& norm_weight, const OptionalTensor& norm_bias, double eps,
             const OptionalTensor& cos, const OptionalTensor& sin) {
  return run(x, weight, bias, num_heads, num_kv_heads, norm, norm_weight, norm_bias, eps, cos, sin,
             std::nullopt);
}

Qkv qkv_proj_packed(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                    int64_t num_heads, int64_t num_kv_heads, const std::optional<std::string>& norm,
                    const OptionalTensor& norm_weight, const OptionalTensor& norm_bias, double eps,
                    const OptionalTensor& cos, const OptionalTensor& sin, const Tensor& packed) {
  return run(x, weight, bias, num_heads, num_kv_heads, norm, norm_weight, norm_bias, eps, cos, sin,
             packed);
}

}  // namespace
}  // namespace fusebench

STABLE_TORCH_LIBRARY_IMPL(fusebench, CPU, m) {
  m.impl("qkv_proj_cpp", TORCH_BOX(&fusebench::qkv_proj));
  m.impl("qkv_proj_cpp_packed", TORCH_BOX(&fusebench::qkv_proj_packed));
}
