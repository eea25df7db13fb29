// Epilogues of the GEMM: what becomes of 8 + 8 float32 results of one row (see ColumnPairs).
// place() says where the columns of a pair lie, columns() also loads what depends on them only, and
// finish() makes of the products of one row what is to be stored. Then store() writes that from
// registers, 16 bytes at a time; or, on sm_90a, four neighbouring lanes and 64 rows put it into
// kChunks boxes, and store_boxes(), at the place of the first of the four pairs, hands them to the
// TMA unit.
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
  DEV static void add(const uint4& bias, float (&values)[8]) {
    float v[8];
    unpack8<T>(bias, v);
    UNROLL
    for (int e = 0; e < 8; e++) values[e] += v[e];
  }
};

// The map of a row-major matrix by its boxes.
template <class T>
StoreMaps<1> matrix_map(T* out, int rows, int columns) {
  const uint64_t n = static_cast<uint64_t>(columns);
  return {{make_tensor_map(
      out, {2, {n, static_cast<uint64_t>(rows)}, {n * 2}, {kBoxColumns, kBoxRows}, kSwizzleNone})}};
}

// out[row, column] = result + bias + residual, row-major.
template <class T>
struct RowMajorEpilogue {
  const T *bias, *residual;
  T* out;
  int n;
  bool aligned;
  int first = 0, second = 0, count_a = 0, count_b = 0;
  PairBias<T> bias_values = {};

  DEV void place(int pair, const ColumnPairs& pairs) {
    first = pairs.first(pair), second = first + pairs.half;
    count_a = max_of(0, min_of(8, n - first)), count_b = max_of(0, min_of(8, n - second));
  }
  DEV void columns(int pair, const ColumnPairs& pairs) {
    place(pair, pairs);
    bias_values.load(bias, first, second, count_a, count_b, aligned);
  }
  DEV void finish(int row, float (&a)[8], float (&b)[8]) const {
    PairBias<T>::add(bias_values.a, a);
    PairBias<T>::add(bias_values.b, b);
    if (!residual) return;
    const T* src = residual + static_cast<int64_t>(row) * n;
    float r[8];
    load8(src + first, count_a, aligned, r);
    UNROLL
    for (int e = 0; e < 8; e++) a[e] += r[e];
    load8(src + second, count_b, aligned, r);
    UNROLL
    for (int e = 0; e < 8; e++) b[e] += r[e];
  }
  DEV void store(int row, const float (&a)[8], const float (&b)[8]) const {
    T* dst = out + static_cast<int64_t>(row) * n;
    store8(dst + first, count_a, aligned, a);
    store8(dst + second, count_b, aligned, b);
  }

  static constexpr int kChunks = 2, kOutputs = 1;
  bool fits_sm90() const { return aligned; }
  DEV void assume_aligned() { aligned = true; }
  StoreMaps<kOutputs> maps(int m) const { return matrix_map(out, m, n); }
  DEV void store_boxes(const StoreMaps<kOutputs>& to, smem_t boxes, int row, int) const {
    tma_store_2d(&to.map[0], boxes, first, row);
    tma_store_2d(&to.map[0], boxes + kBoxBytes, second, row);
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

  DEV void place(int pair, const ColumnPairs& pairs) {
    column = pairs.first(pair), count = pairs.count(pair);
  }
  DEV void columns(int pair, const ColumnPairs& pairs) {
    place(pair, pairs);
    bias_values.load(bias, column, column + ffn, count, count, aligned);
  }
  DEV void finish(int, float (&a)[8], float (&b)[8]) const {
    PairBias<T>::add(bias_values.a, a);
    PairBias<T>::add(bias_values.b, b);
    UNROLL
    for (int e = 0; e < 8; e++) a[e] *= sigmoid(a[e]) * b[e];
  }
  DEV void store(int row, const float (&a)[8], const float (&)[8]) const {
    store8(hidden + static_cast<int64_t>(row) * ffn + column, count, aligned, a);
  }
  DEV static float sigmoid(float v) { return rcp(1.f + ex2(v * -1.4426950408889634f)); }

  static constexpr int kChunks = 1, kOutputs = 1;
  bool fits_sm90() const { return aligned; }
  DEV void assume_aligned() { aligned = true; }
  StoreMaps<kOutputs> maps(int m) const { return matrix_map(hidden, m, ffn); }
  DEV void store_boxes(const StoreMaps<kOutputs>& to, smem_t boxes, int row, int) const {
    tma_store_2d(&to.map[0], boxes, column, row);
  }
};

// Rotates q and k, and sends every head to its place in q, k or v, each [batch, heads, tokens, d].
template <class T>
struct HeadsEpilogue {
  const T* bias;
  const float *cos, *sin;  // [tokens, d / 2] or null
  T *q, *k, *v;
  int tokens, heads, kv_heads, head_dim;
  bool aligned;                                     // bias, q, k, v and the position of every chunk
  bool aligned_rotation;                            // cos and sin likewise
  int output = 0, head = 0, offset = 0, count = 0;  // of q, k, v; of its heads; in the head
  bool rotate = false;
  PairBias<T> bias_values = {};

  DEV void place(int pair, const ColumnPairs& pairs) {
    const int first = pairs.first(pair);
    head = first / head_dim, offset = first % head_dim, count = pairs.count(pair);
    output = head < heads ? 0 : head < heads + kv_heads ? 1 : 2;
    head -= output == 0 ? 0 : output == 1 ? heads : heads + kv_heads;
    rotate = cos != nullptr && output < 2;
  }
  DEV void columns(int pair, const ColumnPairs& pairs) {
    place(pair, pairs);
    const int first = pairs.first(pair);
    bias_values.load(bias, first, first + head_dim / 2, count, count, aligned);
  }
  DEV void finish(int row, float (&a)[8], float (&b)[8]) const {
    PairBias<T>::add(bias_values.a, a);
    PairBias<T>::add(bias_values.b, b);
    if (!rotate) return;
    float c[8], s[8];
    const int64_t at = static_cast<int64_t>(row % tokens) * (head_dim / 2) + offset;
    load8(cos + at, count, aligned_rotation, c);
    load8(sin + at, count, aligned_rotation, s);
    UNROLL
    for (int e = 0; e < 8; e++) {
      const float x1 = a[e], x2 = b[e];
      a[e] = x1 * c[e] - x2 * s[e], b[e] = x2 * c[e] + x1 * s[e];
    }
  }
  DEV void store(int row, const float (&a)[8], const float (&b)[8]) const {
    const int64_t in_batch = static_cast<int64_t>(row / tokens) * (output ? kv_heads : heads);
    T* dst = output == 0 ? q : output == 1 ? k : v;
    dst += ((in_batch + head) * tokens + row % tokens) * head_dim + offset;
    store8(dst, count, aligned, a);
    store8(dst + head_dim / 2, count, aligned, b);
  }

  static constexpr int kChunks = 2, kOutputs = 3;
  bool fits_sm90() const { return aligned && aligned_rotation; }
  DEV void assume_aligned() { aligned = aligned_rotation = true; }
  StoreMaps<kOutputs> maps(int m) const {
    return {{heads_map(q, heads, m), heads_map(k, kv_heads, m), heads_map(v, kv_heads, m)}};
  }
  // Boxes of 64 tokens of one head. With one token each, the sequences take the tokens' place.
  tensor_map heads_map(T* base, int own_heads, int m) const {
    const uint64_t d = static_cast<uint64_t>(head_dim), h = static_cast<uint64_t>(own_heads);
    const uint64_t rows = static_cast<uint64_t>(box_rows(m));
    const uint64_t line = d * 2, row_bytes = tokens == 1 ? h * line : line;
    return make_tensor_map(base, {4,
                                  {d, rows, h, static_cast<uint64_t>(m) / rows},
                                  {row_bytes, tokens == 1 ? line : rows * line, rows * h * line},
                                  {kBoxColumns, kBoxRows, 1, 1},
                                  kSwizzleNone});
  }
  HOST_DEV int box_rows(int m) const { return tokens == 1 ? m : tokens; }
  // Rows that reach into the next sequence are cut off at the end of this one; those of this one
  // lie before the start of the next and are cut off there.
  DEV void store_boxes(const StoreMaps<kOutputs>& to, smem_t boxes, int row, int m) const {
    const int rows = box_rows(m), end = min_of(row + kBoxRows, m);
    for (int batch = row / rows; batch * rows < end; batch++) {
      const int at = row - batch * rows;
      tma_store_4d(&to.map[output], boxes, offset, at, head, batch);
      tma_store_4d(&to.map[output], boxes + kBoxBytes, offset + head_dim / 2, at, head, batch);
    }
  }
};
}  // namespace fusebench::cuda
