// Launchers of the CUDA kernels, on raw device pointers; what csrc/bindings calls.
#pragma once
#include <cstdint>

namespace fusebench::cuda {
enum class DType { kBFloat16, kFloat16 };

// Compute capability of the current device: 80, 90, ... The simulator's is the one it plays.
int current_arch();

inline bool is_aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

enum class NormKind { kNone, kLayerNorm, kRmsNorm };
struct Norm {
  NormKind kind = NormKind::kNone;
  const void* weight = nullptr;  // [C] or null
  const void* bias = nullptr;    // [C] or null
  float eps = 0;
  void* stats = nullptr;  // workspace of rows x 2 float32, null without a norm
};

// out[m, n] = norm(x[m, k]) @ weight[n, k]^T + bias[n] + residual[m, n]
struct LinearArgs {
  const void *x, *weight, *bias, *residual;
  void* out;
  int m, n, k;
  Norm norm;
};

// weight[(hq + 2 hkv) * d, k]; q[b, hq, t, d], k and v[b, hkv, t, d]; cos and sin [t, d / 2] or
// null
struct QkvProjArgs {
  const void *x, *weight, *bias;
  const float *cos, *sin;
  void *q, *k, *v;
  int batch, tokens, channels, heads, kv_heads, head_dim;
  Norm norm;
};

// hidden[m, f] = silu(n @ gate^T + b) * (n @ up^T + b), then out = hidden @ w_down^T + ...
struct SwigluFfnArgs {
  const void *x, *w_gate_up, *w_down, *b_gate_up, *b_down, *residual;
  void *hidden, *out;
  int m, channels, ffn;
  Norm norm;
};

// out[b, t, c] = token_weight[tokens[b, t]] + position_weight[start + t]
struct EmbeddingArgs {
  const int64_t* tokens;
  const void *token_weight, *position_weight;
  void* out;
  int batch, tokens_per_row, channels;
  int64_t vocabulary, start;
};

// A [batch, heads, tokens, head_dim] tensor whose last dimension is contiguous.
struct HeadsView {
  void* data;
  int64_t batch_stride, head_stride, token_stride;
};
struct SdpaArgs {
  HeadsView q, k, v, out;
  float* lse;  // [b, hq, tq], natural logarithm; may be null
  int batch, heads, kv_heads, q_tokens, k_tokens, head_dim;
  bool causal;
  float scale;
  // Split-KV: partial results of `splits` slices of the keys. Null when splits is 1.
  int splits;
  float* partial_out;  // [splits, b, hq, tq, sdpa_partial_stride(d)]
  float* partial_lse;  // [splits, b, hq, tq]
};
// How many slices of the keys keep the GPU busy for this problem.
int sdpa_splits(int batch, int heads, int kv_heads, int q_tokens, int k_tokens);
int sdpa_partial_stride(int head_dim);

struct SdpaBackwardArgs {
  SdpaArgs forward;  // out and lse as the forward left them
  HeadsView grad_out, grad_q, grad_k, grad_v;
  float* delta;  // workspace [b, hq, tq]
};

void linear(const LinearArgs&, DType, void* stream);
void qkv_proj(const QkvProjArgs&, DType, void* stream);
void swiglu_ffn(const SwigluFfnArgs&, DType, void* stream);
void embedding(const EmbeddingArgs&, DType, void* stream);
void sdpa(const SdpaArgs&, DType, void* stream);
void sdpa_backward(const SdpaBackwardArgs&, DType, void* stream);
}  // namespace fusebench::cuda
