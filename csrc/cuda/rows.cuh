// Rows of 16-bit values, eight (16 bytes) at a time, and the norm statistics of a row.
#pragma once
#include "launch.cuh"
#include "ops.h"
#include "ptx.cuh"

namespace fusebench::cuda {
template <class T>
DEV uint4 pack8(const float (&v)[8]) {
  return make_uint4(pack2<T>(v[0], v[1]), pack2<T>(v[2], v[3]), pack2<T>(v[4], v[5]),
                    pack2<T>(v[6], v[7]));
}
template <class T>
DEV void unpack8(const uint4& u, float (&v)[8]) {
  const uint32_t words[4] = {u.x, u.y, u.z, u.w};
  UNROLL
  for (int i = 0; i < 4; i++) {
    const float2 f = unpack2<T>(words[i]);
    v[2 * i] = f.x, v[2 * i + 1] = f.y;
  }
}

// Eight neighbouring values as float32; those from `count` on are 0 and not read. `aligned` says
// that p is a multiple of 16 bytes and that count is at least 8 or at most 0, which every caller
// knows for a whole tensor at once: then there is one load, and no branch.
template <class T>
DEV void load8(const T* p, int count, bool aligned, float (&v)[8]) {
  if (aligned) {
    uint4 u = make_uint4(0, 0, 0, 0);
    if (count > 0) u = ldg(reinterpret_cast<const uint4*>(p));
    unpack8<T>(u, v);
  } else {
    UNROLL
    for (int e = 0; e < 8; e++) v[e] = e < count ? to_float(ldg(p + e)) : 0.f;
  }
}

DEV void load8(const float* p, int count, bool aligned, float (&v)[8]) {
  if (aligned) {
    UNROLL
    for (int i = 0; i < 8; i += 4) {
      float4 f = make_float4(0.f, 0.f, 0.f, 0.f);
      if (count > 0) f = ldg(reinterpret_cast<const float4*>(p + i));
      v[i] = f.x, v[i + 1] = f.y, v[i + 2] = f.z, v[i + 3] = f.w;
    }
  } else {
    UNROLL
    for (int e = 0; e < 8; e++) v[e] = e < count ? ldg(p + e) : 0.f;
  }
}

template <class T>
DEV void store8(T* p, int count, bool aligned, const float (&v)[8]) {
  if (aligned) {
    if (count > 0) stg(reinterpret_cast<uint4*>(p), pack8<T>(v));
  } else {
    UNROLL
    for (int e = 0; e < 8; e++)
      if (e < count) stg(p + e, from_float<T>(v[e]));
  }
}

// One warp per row: {mean, 1 / deviation}, in two passes so that a mean far above the deviation
// costs no accuracy. RMSNorm is the same with a mean of 0. The second pass reads the L1 or L2.
constexpr int kRowsPerBlock = 4;
template <class T>
KERNEL(32 * kRowsPerBlock, 1)
row_stats_kernel(const T* x, float2* stats, int rows, int columns, bool subtract_mean, float eps,
                 bool aligned) {
  const int row = static_cast<int>(blockIdx.x) * kRowsPerBlock + warp_id();
  if (row >= rows) return;
  const T* src = x + static_cast<int64_t>(row) * columns;
  float v[8], mean = 0.f, squares = 0.f;
  if (subtract_mean) {
    for (int c = lane_id() * 8; c < columns; c += 256) {
      load8(src + c, columns - c, aligned, v);
      UNROLL
      for (int e = 0; e < 8; e++) mean += v[e];
    }
    mean = warp_sum(mean) / static_cast<float>(columns);
  }
  for (int c = lane_id() * 8; c < columns; c += 256) {
    load8(src + c, columns - c, aligned, v);
    UNROLL
    for (int e = 0; e < 8; e++)
      if (c + e < columns) squares += (v[e] - mean) * (v[e] - mean);
  }
  const float variance = warp_sum(squares) / static_cast<float>(columns);
  if (lane_id() == 0) stg(stats + row, make_float2(mean, 1.f / sqrtf(variance + eps)));
}

template <class T>
void row_stats(const T* x, int rows, int columns, const Norm& norm, void* stream) {
  float2* stats = static_cast<float2*>(norm.stats);
  const dim3 grid(static_cast<unsigned>(ceil_div(rows, kRowsPerBlock)));
  launch(row_stats_kernel<T>, {"row_stats", grid, 32 * kRowsPerBlock, 0, stream},
         {reads(x, int64_t{rows} * columns), writes(stats, rows)}, x, stats, rows, columns,
         norm.kind == NormKind::kLayerNorm, norm.eps, is_aligned16(x) && columns % 8 == 0);
}

// Calls f with a value of the operand type.
template <class F>
void dispatch(DType dtype, F f) {
  if (dtype == DType::kBFloat16)
    f(bf16());
  else
    f(fp16());
}
}  // namespace fusebench::cuda
