// swiglu_ffn: hidden = silu(n @ gate^T) * (n @ up^T), n = norm(x); out = hidden @ w_down^T +
// residual. Gate and up tiles meet in one block, so nothing of width 2F is ever in memory.
#include "epilogues.cuh"
#include "gemm.cuh"

namespace fusebench::cuda {
namespace {
template <class T>
void gate_up(const SwigluFfnArgs& p, void* stream) {
  const GemmProblem<T> g{static_cast<const T*>(p.x),
                         static_cast<const T*>(p.w_gate_up),
                         p.m,
                         2 * p.ffn,
                         p.channels,
                         ColumnPairs::of(2 * p.ffn, 2 * p.ffn)};
  const auto* bias = static_cast<const T*>(p.b_gate_up);
  auto* hidden = static_cast<T*>(p.hidden);
  const bool aligned = p.ffn % 8 == 0 && is_aligned16(bias) && is_aligned16(hidden);
  norm_gemm("swiglu_ffn_gate_up", g, p.norm, SiluMulEpilogue<T>{bias, hidden, p.ffn, aligned},
            {reads(bias, 2 * p.ffn), writes(hidden, int64_t{p.m} * p.ffn)}, stream);
}
}  // namespace

void swiglu_ffn(const SwigluFfnArgs& p, DType dtype, void* stream) {
  dispatch(dtype, [&](auto t) { gate_up<decltype(t)>(p, stream); });
  linear({p.hidden, p.w_down, p.b_down, p.residual, p.out, p.m, p.channels, p.ffn, {}}, dtype,
         stream);
}
}  // namespace fusebench::cuda
