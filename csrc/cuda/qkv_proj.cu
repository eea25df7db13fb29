// qkv_proj: norm(x) @ weight^T + bias, rotated (q and k) and split into heads in one kernel.
#include "epilogues.cuh"
#include "gemm.cuh"

namespace fusebench::cuda {
namespace {
template <class T>
void run(const QkvProjArgs& p, void* stream) {
  const int m = p.batch * p.tokens, n = (p.heads + 2 * p.kv_heads) * p.head_dim;
  const GemmProblem<T> g{
      static_cast<const T*>(p.x),    static_cast<const T*>(p.weight), m, n, p.channels,
      ColumnPairs::of(n, p.head_dim)};
  const auto* bias = static_cast<const T*>(p.bias);
  auto *q = static_cast<T*>(p.q), *k = static_cast<T*>(p.k), *v = static_cast<T*>(p.v);
  const int half = p.head_dim / 2;
  const bool aligned =
      half % 8 == 0 && is_aligned16(bias) && is_aligned16(q) && is_aligned16(k) && is_aligned16(v);
  const bool aligned_rotation = half % 8 == 0 && is_aligned16(p.cos) && is_aligned16(p.sin);
  const int64_t q_size = int64_t{m} * p.heads * p.head_dim,
                kv_size = int64_t{m} * p.kv_heads * p.head_dim,
                rotations = int64_t{p.tokens} * half;
  norm_gemm("qkv_proj", g, p.norm,
            HeadsEpilogue<T>{bias, p.cos, p.sin, q, k, v, p.tokens, p.heads, p.kv_heads, p.head_dim,
                             aligned, aligned_rotation},
            {reads(bias, n), reads(p.cos, rotations), reads(p.sin, rotations), writes(q, q_size),
             writes(k, kv_size), writes(v, kv_size)},
            stream);
}
}  // namespace

void qkv_proj(const QkvProjArgs& p, DType dtype, void* stream) {
  dispatch(dtype, [&](auto t) { run<decltype(t)>(p, stream); });
}
}  // namespace fusebench::cuda
