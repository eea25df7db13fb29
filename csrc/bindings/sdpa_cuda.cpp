// Bindings of fusebench::sdpa_cuda, its form that saves what the backward needs, and the backward;
// see python/fusebench/ops/sdpa.py.
#include "cuda.h"

namespace fusebench::cuda {
namespace {
// The kernels step through batches, heads and tokens by strides, but need rows in one piece.
Tensor rows_in_one_piece(const Tensor& t) {
  return t.size(3) <= 1 || t.stride(3) == 1 ? t : torch::stable::contiguous(t);
}
HeadsView view_of(const Tensor& t) { return {t.data_ptr(), t.stride(0), t.stride(1), t.stride(2)}; }
// [batch, heads, tokens, head_dim] with the memory of [batch, tokens, heads, head_dim].
Tensor empty_merged(const CudaCall& call, const Tensor& like) {
  return torch::stable::transpose(
      call.empty({like.size(0), like.size(2), like.size(1), like.size(3)}), 1, 2);
}

SdpaArgs checked(const CudaCall& call, const Tensor& q, const Tensor& k, const Tensor& v,
                 bool causal, double scale) {
  call.check_rank("q", q, 4, "[B, Hq, Tq, D]");
  call.check_rank("k", k, 4, "[B, Hkv, Tk, D]");
  const int64_t heads = q.size(1), kv_heads = k.size(1), q_tokens = q.size(2), k_tokens = k.size(2);
  call.check_shape("k", k, {q.size(0), kv_heads, k_tokens, q.size(3)});
  call.check_shape("v", v, shape_of(k));
  call.check("k", k, q.scalar_type()), call.check("v", v, q.scalar_type());
  call.require(kv_heads > 0 && heads % kv_heads == 0, "k", std::to_string(kv_heads) + " heads",
               "a divisor of q's " + std::to_string(heads) + " heads");
  call.require(q.size(3) >= 1 && q.size(3) <= 128, "q", "head_dim " + std::to_string(q.size(3)),
               "1 to 128");
  call.require(k_tokens > 0 || q.numel() == 0, "k", "no tokens", "at least one");
  call.require(!causal || q_tokens <= k_tokens, "q", std::to_string(q_tokens) + " tokens",
               "at most k's " + std::to_string(k_tokens) + " when causal");
  call.require(scale > 0, "scale", std::to_string(scale), "a number above 0");
  (void)call.size("k", k_tokens), (void)call.size("q", q_tokens * (heads / kv_heads));
  SdpaArgs a{};
  a.q = view_of(q), a.k = view_of(k), a.v = view_of(v);
  a.batch = call.size("q", q.size(0)), a.heads = call.size("q", heads);
  a.kv_heads = static_cast<int>(kv_heads), a.q_tokens = static_cast<int>(q_tokens);
  a.k_tokens = static_cast<int>(k_tokens), a.head_dim = static_cast<int>(q.size(3));
  a.causal = causal, a.scale = static_cast<float>(scale), a.splits = 1;
  return a;
}

std::tuple<Tensor, Tensor> forward(const Tensor& q_, const Tensor& k_, const Tensor& v_,
                                   bool causal, double scale, bool save) {
  const CudaCall call("sdpa", "q", q_);
  SdpaArgs a = checked(call, q_, k_, v_, causal, scale);
  const Tensor q = rows_in_one_piece(q_), k = rows_in_one_piece(k_), v = rows_in_one_piece(v_);
  a.q = view_of(q), a.k = view_of(k), a.v = view_of(v);
  Tensor out = empty_merged(call, q);
  Tensor lse = call.empty({save ? a.batch : 0, a.heads, a.q_tokens}, ScalarType::Float);
  if (out.numel() == 0) return {out, lse};
  a.out = view_of(out), a.lse = save ? static_cast<float*>(lse.data_ptr()) : nullptr;
  a.splits = sdpa_splits(a.batch, a.heads, a.kv_heads, a.q_tokens, a.k_tokens);
  MaybeTensor partial_out, partial_lse;
  if (a.splits > 1) {
    const int64_t rows = int64_t{a.splits} * a.batch * a.heads * a.q_tokens;
    partial_out = call.empty({rows, sdpa_partial_stride(a.head_dim)}, ScalarType::Float);
    partial_lse = call.empty({rows}, ScalarType::Float);
    a.partial_out = static_cast<float*>(partial_out->data_ptr());
    a.partial_lse = static_cast<float*>(partial_lse->data_ptr());
  }
  sdpa(a, call.dtype(), call.stream());
  return {out, lse};
}

Tensor sdpa_cuda(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double scale) {
  return std::get<0>(forward(q, k, v, causal, scale, false));
}

std::tuple<Tensor, Tensor> sdpa_cuda_saving(const Tensor& q, const Tensor& k, const Tensor& v,
                                            bool causal, double scale) {
  return forward(q, k, v, causal, scale, true);
}

std::tuple<Tensor, Tensor, Tensor> sdpa_cuda_backward(const Tensor& grad_out_, const Tensor& q_,
                                                      const Tensor& k_, const Tensor& v_,
                                                      const Tensor& out_, const Tensor& lse_,
                                                      bool causal, double scale) {
  const CudaCall call("sdpa backward", "q", q_);
  SdpaBackwardArgs a{};
  a.forward = checked(call, q_, k_, v_, causal, scale);
  call.check_shape("grad_out", grad_out_, shape_of(q_));
  call.check_shape("out", out_, shape_of(q_));
  call.check("grad_out", grad_out_, q_.scalar_type()), call.check("out", out_, q_.scalar_type());
  const Tensor q = rows_in_one_piece(q_), k = rows_in_one_piece(k_), v = rows_in_one_piece(v_);
  const Tensor grad_out = rows_in_one_piece(grad_out_), out = rows_in_one_piece(out_);
  const Tensor lse =
      call.operand("lse", lse_, {q.size(0), q.size(1), q.size(2)}, ScalarType::Float);
  Tensor grad_q = call.empty(shape_of(q)), grad_k = call.empty(shape_of(k)),
         grad_v = call.empty(shape_of(v));
  if (q.numel() == 0) {
    torch::stable::zero_(grad_k), torch::stable::zero_(grad_v);
    return {grad_q, grad_k, grad_v};
  }
  Tensor delta = call.empty(shape_of(lse), ScalarType::Float);
  a.forward.q = view_of(q), a.forward.k = view_of(k), a.forward.v = view_of(v);
  a.forward.out = view_of(out), a.forward.lse = static_cast<float*>(lse.data_ptr());
  a.grad_out = view_of(grad_out), a.grad_q = view_of(grad_q), a.grad_k = view_of(grad_k);
  a.grad_v = view_of(grad_v), a.delta = static_cast<float*>(delta.data_ptr());
  sdpa_backward(a, call.dtype(), call.stream());
  return {grad_q, grad_k, grad_v};
}
}  // namespace
}  // namespace fusebench::cuda

STABLE_TORCH_LIBRARY_IMPL(fusebench, FUSEBENCH_CUDA_KEY, m) {
  m.impl("sdpa_cuda", TORCH_BOX(&fusebench::cuda::sdpa_cuda));
  m.impl("sdpa_cuda_saving", TORCH_BOX(&fusebench::cuda::sdpa_cuda_saving));
  m.impl("sdpa_cuda_backward", TORCH_BOX(&fusebench::cuda::sdpa_cuda_backward));
}
