// What a GEMM of a linear op is, apart from the loop that runs it: the matrices, how output columns
// go to threads, the order of the tiles, and the prologues. Epilogues are in epilogues.cuh.
#pragma once
#include <vector>

#include "launch.cuh"
#include "ptx.cuh"
#include "rows.cuh"

namespace fusebench::cuda {
// Output columns come in pairs of 8-column chunks, `half` apart, which one thread holds together:
// the partners of a rotation (span = head_dim), gate and up (span = 2 F), or, where columns have no
// partner, any two (span = 64: the lanes of a quad then store 64 bytes in a row). Chunk columns at
// or past the end of their half do not exist.
struct ColumnPairs {
  int span, half, per_span, total;

  static ColumnPairs of(int columns, int span) {
    const int per_span = ceil_div(span / 2, 8);
    return {span, span / 2, per_span, ceil_div(columns, span) * per_span};
  }
  HOST_DEV int first(int pair) const { return pair / per_span * span + pair % per_span * 8; }
  // How many of the 8 columns of each chunk lie inside their half.
  HOST_DEV int count(int pair) const { return min_of(8, half - pair % per_span * 8); }
};

template <class T>
struct GemmProblem {
  const T *a, *w;  // [m, k] and [n, k], contiguous
  int m, n, k;
  ColumnPairs pairs;
};

// Tiles that run at the same time share rows and columns: 8 tiles of rows, then the next columns.
struct TileOrder {
  int tiles_m, tiles_n;
  HOST_DEV int tiles() const { return tiles_m * tiles_n; }
  DEV void locate(int tile, int& m, int& n) const {
    constexpr int kGroup = 8;
    const int group = tile / (kGroup * tiles_n) * kGroup, in_group = tile % (kGroup * tiles_n);
    const int rows = min_of(kGroup, tiles_m - group);
    m = group + in_group % rows, n = in_group / rows;
  }
};

// On sm_90a the TMA unit stores finished results: boxes of 64 rows x the 32 columns of a chunk of
// four neighbouring pairs, dense in shared memory (the 16 bytes of 8 lanes are two rows: no bank
// conflicts without a swizzle either), cut where the tensor ends.
constexpr int kBoxRows = 64, kBoxColumns = 32, kBoxBytes = kBoxRows * kBoxColumns * 2;
template <int N>
struct StoreMaps {
  tensor_map map[N];
};

// ---------------------------------------------------------------------------------- prologues ---
struct NoPrologue {
  static constexpr bool kActive = false;
};

// LayerNorm or RMSNorm of the rows of A with statistics from row_stats, rounded once to T as the
// unfused norm rounds its result. In the loop of sm_80 a thread rewrites the very chunks it copied,
// so waiting for its own copies is enough, and the barrier that publishes the stage publishes the
// result.
template <class T>
struct NormPrologue {
  static constexpr bool kActive = true;
  const float2* stats;
  const T *weight, *bias;
  bool aligned;  // weight and bias

  struct Columns {
    float weight[8], bias[8];
  };
  DEV Columns columns(int k0, int count) const {
    Columns c;
    UNROLL
    for (int e = 0; e < 8; e++) c.weight[e] = 1.f, c.bias[e] = 0.f;
    if (weight) load8(weight + k0, count, aligned, c.weight);
    if (bias) load8(bias + k0, count, aligned, c.bias);
    return c;
  }
  DEV uint4 normalized(const uint4& chunk, float2 row, const Columns& c) const {
    float v[8];
    unpack8<T>(chunk, v);
    UNROLL
    for (int e = 0; e < 8; e++) v[e] = (v[e] - row.x) * row.y * c.weight[e] + c.bias[e];
    return pack8<T>(v);
  }
  DEV void apply(smem_t chunk, float2 row, const Columns& c) const {
    sts128(chunk, normalized(lds128(chunk), row, c));
  }
};
}  // namespace fusebench::cuda
