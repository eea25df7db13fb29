// Binding of fusebench::qkv_proj_cuda; see python/fusebench/ops/qkv_proj.py.
#include "cuda.h"

namespace fusebench::cuda {
namespace {
std::tuple<Tensor, Tensor, Tensor> qkv_proj_cuda(const Tensor& x, const Tensor& weight,
                                                 const MaybeTensor& bias, int64_t num_heads,
                                                 int64_t num_kv_heads, const MaybeString& norm,
                                                 const MaybeTensor& norm_weight,
                                                 const MaybeTensor& norm_bias, double eps,
                                                 const MaybeTensor& cos, const MaybeTensor& sin) {
  const CudaCall call("qkv_proj", "x", x);
  call.check_rank("x", x, 3, "[B, T, C]");
  call.check_rank("weight", weight, 2, "[(Hq + 2 Hkv) D, C]");
  call.require(num_heads > 0, "num_heads", std::to_string(num_heads), "a positive number");
  call.require(num_kv_heads > 0 && num_heads % num_kv_heads == 0, "num_kv_heads",
               std::to_string(num_kv_heads),
               "a divisor of num_heads = " + std::to_string(num_heads));
  const int64_t batch = x.size(0), tokens = x.size(1), channels = x.size(2);
  const int64_t n = weight.size(0), all_heads = num_heads + 2 * num_kv_heads;
  call.require(n % all_heads == 0 && n / all_heads % 2 == 0 && n > 0, "weight",
               "shape " + shape_text(shape_of(weight)),
               std::to_string(all_heads) + " heads of an even number of rows each");
  const int64_t head_dim = n / all_heads;
  const Tensor a = call.operand("x", x, shape_of(x));
  const Tensor w = call.operand("weight", weight, {n, channels});
  const MaybeTensor b = call.operand("bias", bias, {n});
  call.require(cos.has_value() == sin.has_value(), cos ? "sin" : "cos", "None",
               "both cos and sin, or neither");
  const std::vector<int64_t> angles = {tokens, head_dim / 2};
  const MaybeTensor c = call.operand("cos", cos, angles, ScalarType::Float);
  const MaybeTensor s = call.operand("sin", sin, angles, ScalarType::Float);
  const auto prologue = call.norm(norm, norm_weight, norm_bias, eps, batch * tokens, channels);
  Tensor q = call.empty({batch, num_heads, tokens, head_dim});
  Tensor k = call.empty({batch, num_kv_heads, tokens, head_dim});
  Tensor v = call.empty({batch, num_kv_heads, tokens, head_dim});
  if (q.numel() == 0) return {q, k, v};
  (void)call.size("x", batch * tokens), (void)call.size("weight", n);
  qkv_proj({a.const_data_ptr(), w.const_data_ptr(), call.data(b),
            static_cast<const float*>(call.data(c)), static_cast<const float*>(call.data(s)),
            q.data_ptr(), k.data_ptr(), v.data_ptr(), static_cast<int>(batch),
            static_cast<int>(tokens), call.size("x", channels), static_cast<int>(num_heads),
            static_cast<int>(num_kv_heads), static_cast<int>(head_dim), prologue.norm},
           call.dtype(), call.stream());
  return {q, k, v};
}
}  // namespace
}  // namespace fusebench::cuda

STABLE_TORCH_LIBRARY_IMPL(fusebench, FUSEBENCH_CUDA_KEY, m) {
  m.impl("qkv_proj_cuda", TORCH_BOX(&fusebench::cuda::qkv_proj_cuda));
}
