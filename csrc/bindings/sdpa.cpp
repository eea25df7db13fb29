// fusebench::sdpa_cpp
#include <cmath>

#include "cpu.h"

namespace fusebench {
namespace {

constexpr int64_t kMaxHeadDim = 256;

// [B, H, T, D] with any strides as long as the head's own elements are together.
Tensor heads(const char* argument, const Tensor& t, ScalarType type,
             std::initializer_list<int64_t> sizes) {
  if (t.dim() == 4 && t.stride(3) == 1 && t.scalar_type() == type && t.is_cpu()) {
    bool fits = true;
    for (int i = 0; i < 4; i++) {
      const int64_t size = sizes.begin()[i];
      fits = fits && (size < 0 || t.size(i) == size);
    }
    if (fits) return t;
  }
  return want("sdpa", argument, t, type, sizes);
}

Tensor sdpa(const Tensor& q_, const Tensor& k_, const Tensor& v_, bool causal, double scale) {
  const char* op = "sdpa";
  const DType dtype = dtype_of(op, "q", q_);
  const ScalarType type = q_.scalar_type();
  const Tensor q = heads("q", q_, type, {-1, -1, -1, -1});
  const int64_t batch = q.size(0), num_heads = q.size(1), q_len = q.size(2), d = q.size(3);
  const Tensor k = heads("k", k_, type, {batch, -1, -1, d});
  const int64_t num_kv_heads = k.size(1), kv_len = k.size(2);
  const Tensor v = heads("v", v_, type, {batch, num_kv_heads, kv_len, d});
  if (num_kv_heads < 1 || num_heads % num_kv_heads != 0) {
    refuse(op, "k", "has " + std::to_string(num_kv_heads) + " heads",
           "a divisor of q's " + std::to_string(num_heads) + " heads");
  }
  if (d < 1 || d > kMaxHeadDim) {
    refuse(op, "q", "has head_dim " + std::to_string(d),
           "head_dim from 1 to " + std::to_string(kMaxHeadDim));
  }
  if (causal && q_len > kv_len) {
    refuse(op, "q", "has " + std::to_string(q_len) + " positions",
           "at most k's " + std::to_string(kv_len) + " when causal");
  }
  if (!std::isfinite(scale)) refuse(op, "scale", "is not finite", "a finite number");
  Tensor out =
      empty(type, {batch, num_heads, q_len, d}, {q_len * num_heads * d, d, num_heads * d, 1});
  if (out.numel() == 0) return out;
  if (kv_len == 0) refuse(op, "k", "has no positions", "at least one key");
  const SdpaArgs args{data_of(q),
                      data_of(k),
                      data_of(v),
                      out.mutable_data_ptr(),
                      {q.stride(0), q.stride(1), q.stride(2)},
                      {k.stride(0), k.stride(1), k.stride(2)},
                      {v.stride(0), v.stride(1), v.stride(2)},
                      batch,
                      num_heads,
                      num_kv_heads,
                      q_len,
                      kv_len,
                      d,
                      causal,
                      float(scale)};
  kernels().sdpa(dtype, args, torch_threads());
  return out;
}

}  // namespace
}  // namespace fusebench

STABLE_TORCH_LIBRARY_IMPL(fusebench, CPU, m) { m.impl("sdpa_cpp", TORCH_BOX(&fusebench::sdpa)); }
