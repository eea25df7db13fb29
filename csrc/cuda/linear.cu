// linear: out = norm(x) @ weight^T + bias + residual.
#include "epilogues.cuh"
#include "gemm.cuh"

namespace fusebench::cuda {
namespace {
template <class T>
void run(const LinearArgs& p, void* stream) {
  const GemmProblem<T> g{static_cast<const T*>(p.x), static_cast<const T*>(p.weight), p.m, p.n, p.k,
                         ColumnPairs::of(p.n, 64)};
  const auto *bias = static_cast<const T*>(p.bias), *residual = static_cast<const T*>(p.residual);
  auto* out = static_cast<T*>(p.out);
  const bool aligned =
      p.n % 8 == 0 && is_aligned16(bias) && is_aligned16(residual) && is_aligned16(out);
  const int64_t size = int64_t{p.m} * p.n;
  norm_gemm("linear", g, p.norm, RowMajorEpilogue<T>{bias, residual, out, p.n, aligned},
            {reads(bias, p.n), reads(residual, size), writes(out, size)}, stream);
}
}  // namespace

void linear(const LinearArgs& p, DType dtype, void* stream) {
  dispatch(dtype, [&](auto t) { run<decltype(t)>(p, stream); });
}
}  // namespace fusebench::cuda
