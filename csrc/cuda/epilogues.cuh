// Epilogues of the GEMM: what becomes of 8 + 8 float32 results of one row (see ColumnPairs).
// columns() loads what depends on the columns only; store() finishes one row.
#pragma once
#include "gemm.cuh"

namespace fusebench::cuda {
// Bias of the two chunks of a pair, 0 where there is none; packed, because every register counts
// beside the accumulators.
template <class T>
struct PairBias {
  uint4 a, b;
  DEV void load(const T* bias, int first, int second, int count_a, int count_b, bool aligned) {
    a = b = make_uint4(0, 0, 0, 0);
    if (!bias) return;
    float v[8];
    load8(bias + first, count_a, aligned, v);
    a = pack8<T>(v);
    load8(bias + second, count_b, aligned, v);
    b = pack8<T>(v);
  }
  // sum = values + bias
  DEV static void add(const uint4& bias, const float (&values)[8], float (&sum)[8]) {
    unpack8<T>(bias, sum);
    UNROLL
    for (int e = 0; e < 8; e++) sum[e] += values[e];
  }
};

// out[row, column] = result + bias + residual, row-major.
template <class T>
struct RowMajorEpilogue {
  const T *bias, *residual;
  T* out;
  int n;
  bool aligned;
  int first = 0, second = 0, count_a = 0, count_b = 0;
  PairBias<T> bias_values = {};

  DEV void columns(int pair, const ColumnPairs& pairs) {
    first = pairs.first(pair), second = first + pairs.half;
    count_a = max_of(0, min_of(8, n - first)), count_b = max_of(0, min_of(8, n - second));
    bias_values.load(bias, first, second, count_a, count_b, aligned);
  }
  DEV void store(int row, const float (&a)[8], const float (&b)[8]) const {
    const int64_t at = static_cast<int64_t>(row) * n;
    store_chunk(at + first, count_a, a, bias_values.a);
    store_chunk(at + second, count_b, b, bias_values.b);
  }
  DEV void store_chunk(int64_t at, int count, const float (&v)[8], const uint4& bias8) const {
    float sum[8];
    PairBias<T>::add(bias8, v, sum);
    if (residual) {
      float r[8];
      load8(residual + at, count, aligned, r);
      UNROLL
      for (int e = 0; e < 8; e++) sum[e] += r[e];
    }
    store8(out + at, count, aligned, sum);
  }
};

// hidden[row, f] = silu(gate + bias) * (up + bias).
template <class T>
struct SiluMulEpilogue {
  const T* bias;  // [2 ffn]
  T* hidden;
  int ffn;
  bool aligned;
  int column = 0, count = 0;
  PairBias<T> bias_values = {};

  DEV void columns(int pair, const ColumnPairs& pairs) {
    column = pairs.first(pair), count = pairs.count(pair);
    bias_values.load(bias, column, column + ffn, count, count, aligned);
  }
  DEV void store(int row, const float (&a)[8], const float (&b)[8]) const {
    float gate[8], up[8];
    bias_values.add(bias_values.a, a, gate);
    bias_values.add(bias_values.b, b, up);
    UNROLL
    for (int e = 0; e < 8; e++) up[e] *= gate[e] * sigmoid(gate[e]);
    store8(hidden + static_cast<int64_t>(row) * ffn + column, count, aligned, up);
  }
  DEV static float sigmoid(float v) { return rcp(1.f + ex2(v * -1.4426950408889634f)); }
};

// Rotates q and k, and sends every head to its place in q, k or v, each [batch, heads, tokens, d].
template <class T>
struct HeadsEpilogue {
  const T* bias;
  const float *cos, *sin;  // [tokens, d / 2] or null
  T *q, *k, *v;
  int tokens, heads, kv_heads, head_dim;
  bool aligned;           // bias, q, k, v and the position of every chunk
  bool aligned_rotation;  // cos and sin likewise
  T* head = nullptr;      // this head, batch 0, token 0
  int64_t batch_stride = 0;
  int offset = 0, count = 0;
  bool rotate = false;
  PairBias<T> bias_values = {};

  DEV void columns(int pair, const ColumnPairs& pairs) {
    const int first = pairs.first(pair);
    int h = first / head_dim, own_heads = heads;
    offset = first % head_dim, count = pairs.count(pair);
    T* base = q;
    rotate = cos != nullptr && h < heads + kv_heads;
    if (h >= heads) {
      const bool is_k = h < heads + kv_heads;
      base = is_k ? k : v, h -= is_k ? heads : heads + kv_heads, own_heads = kv_heads;
    }
    const int64_t per_head = static_cast<int64_t>(tokens) * head_dim;
    head = base + h * per_head, batch_stride = own_heads * per_head;
    bias_values.load(bias, first, first + head_dim / 2, count, count, aligned);
  }
  DEV void store(int row, const float (&a)[8], const float (&b)[8]) const {
    const int batch = row / tokens, token = row % tokens, half = head_dim / 2;
    float x1[8], x2[8];
    bias_values.add(bias_values.a, a, x1);
    bias_values.add(bias_values.b, b, x2);
    if (rotate) {
      float c[8], s[8];
      const int64_t at = static_cast<int64_t>(token) * half + offset;
      load8(cos + at, count, aligned_rotation, c);
      load8(sin + at, count, aligned_rotation, s);
      UNROLL
      for (int e = 0; e < 8; e++) {
        const float r1 = x1[e] * c[e] - x2[e] * s[e], r2 = x2[e] * c[e] + x1[e] * s[e];
        x1[e] = r1, x2[e] = r2;
      }
    }
    T* dst = head + batch * batch_stride + static_cast<int64_t>(token) * head_dim + offset;
    store8(dst, count, aligned, x1);
    store8(dst + half, count, aligned, x2);
  }
};
}  // namespace fusebench::cuda
