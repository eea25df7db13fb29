// The GEMM of every linear op for few rows (a decode step), on sm_80 and later: out =
// epilogue(prologue(A[m, k]) @ W[n, k]^T), with the same prologues and epilogues. All that counts
// is to stream W once: 16 bytes per load, straight from global memory into the operands of
// mma.sync, whose 16 rows are the 8 + 8 columns of a pair and whose 8 columns are rows of A. The
// warps of a block share one pair and split its k.
#pragma once
#include "gemm_problem.cuh"

namespace fusebench::cuda {
constexpr int kFewRows = 16;  // up to here W costs more to read than to multiply

template <int ROWS_>
struct FewRowsTile {
  static constexpr int ROWS = ROWS_, GROUPS = ROWS / 8, CHUNKS = 2, WARPS = 8;
  static constexpr int THREADS = 32 * WARPS;
  static constexpr int SLICE = 64;  // of k, for one warp at a time: two steps of 32
  static constexpr int SUMS_BYTES = WARPS * GROUPS * 32 * 16;  // of each warp, as its lanes hold it
  static constexpr int ROW_BYTES = 16 * 4 + 16;                // of a finished row: no conflicts
  static constexpr int SMEM_BYTES = SUMS_BYTES + ROWS * ROW_BYTES;
};

// 8 neighbouring values at p + at, as far as they lie before `end`.
template <class T>
DEV uint4 load_chunk(const T* p, int at, int end, bool aligned) {
  if (p == nullptr || at >= end) return make_uint4(0, 0, 0, 0);
  if (aligned) return ldg(reinterpret_cast<const uint4*>(p + at));
  float v[8];
  load8(p + at, end - at, false, v);
  return pack8<T>(v);
}

template <class T, class Tile, class Prologue, class Epilogue>
KERNEL(Tile::THREADS, 2)
gemm_few_rows_kernel(GemmProblem<T> g, bool aligned, Prologue prologue, Epilogue epilogue) {
  const int pair = static_cast<int>(blockIdx.x), lane = lane_id(), warp = warp_id();
  const int line = lane / 4;  // of both chunks of the pair, and of each group of rows of A
  const T *w[Tile::CHUNKS], *a[Tile::GROUPS];
  UNROLL
  for (int c = 0; c < Tile::CHUNKS; c++) {
    const int column = g.pairs.first(pair) + c * g.pairs.half + line;
    const bool exists = line < g.pairs.count(pair) && column < g.n;
    w[c] = exists ? g.w + static_cast<int64_t>(column) * g.k : nullptr;
  }
  float2 stats[Tile::GROUPS];
  UNROLL
  for (int i = 0; i < Tile::GROUPS; i++) {
    const int row = i * 8 + line;
    a[i] = row < g.m ? g.a + static_cast<int64_t>(row) * g.k : nullptr;
    stats[i] = make_float2(0.f, 0.f);
    if constexpr (Prologue::kActive)
      if (row < g.m) stats[i] = ldg(prologue.stats + row);
  }

  float acc[Tile::GROUPS][4] = {};
  NO_UNROLL
  for (int k0 = warp * Tile::SLICE; k0 < g.k; k0 += Tile::WARPS * Tile::SLICE) {
    constexpr int kSteps = Tile::SLICE / 32;
    uint4 wide[kSteps][Tile::CHUNKS], rows[kSteps][Tile::GROUPS];
    const int at = k0 + lane % 4 * 8;
    UNROLL
    for (int s = 0; s < kSteps; s++) {
      UNROLL
      for (int c = 0; c < Tile::CHUNKS; c++)
        wide[s][c] = load_chunk(w[c], at + s * 32, g.k, aligned);
      UNROLL
      for (int i = 0; i < Tile::GROUPS; i++)
        rows[s][i] = load_chunk(a[i], at + s * 32, g.k, aligned);
    }
    UNROLL
    for (int s = 0; s < kSteps; s++) {
      if constexpr (Prologue::kActive) {
        const int column = at + s * 32;
        const auto columns = prologue.columns(column, max_of(0, min_of(8, g.k - column)));
        UNROLL
        for (int i = 0; i < Tile::GROUPS; i++)
          rows[s][i] = prologue.normalized(rows[s][i], stats[i], columns);
      }
      // A sum over k may take k in any order, so long as both operands take it in the same: a
      // lane's 8 neighbours stand for the k that two multiplies want of it.
      const uint4 &u = wide[s][0], &v = wide[s][1];
      const uint32_t low[4] = {u.x, v.x, u.y, v.y}, high[4] = {u.z, v.z, u.w, v.w};
      UNROLL
      for (int i = 0; i < Tile::GROUPS; i++) {
        mma_m16n8k16<T>(acc[i], low, rows[s][i].x, rows[s][i].y);
        mma_m16n8k16<T>(acc[i], high, rows[s][i].z, rows[s][i].w);
      }
    }
  }

  const smem_t sums = smem_base(), finished = sums + Tile::SUMS_BYTES;
  UNROLL
  for (int i = 0; i < Tile::GROUPS; i++)
    sts128(sums + ((warp * Tile::GROUPS + i) * 32 + lane) * 16,
           make_uint4(float_to_bits(acc[i][0]), float_to_bits(acc[i][1]), float_to_bits(acc[i][2]),
                      float_to_bits(acc[i][3])));
  sync_block();
  if (warp >= Tile::GROUPS) return;
  // From here on a warp finishes 8 rows: it adds up the slices of k, and gathers each row.
  float sum[4] = {};
  UNROLL
  for (int i = 0; i < Tile::WARPS; i++) {
    const uint4 u = lds128(sums + ((i * Tile::GROUPS + warp) * 32 + lane) * 16);
    sum[0] += bits_to_float(u.x), sum[1] += bits_to_float(u.y);
    sum[2] += bits_to_float(u.z), sum[3] += bits_to_float(u.w);
  }
  const smem_t mine = finished + warp * 8 * Tile::ROW_BYTES;
  UNROLL
  for (int i = 0; i < 4; i++)
    stsf(mine + (lane % 4 * 2 + i % 2) * Tile::ROW_BYTES + (i / 2 * 8 + line) * 4, sum[i]);
  sync_warp();
  const int row = warp * 8 + lane;
  if (lane >= 8 || row >= g.m) return;
  float first[8], second[8];
  UNROLL
  for (int e = 0; e < 8; e++) {
    first[e] = ldsf(mine + lane * Tile::ROW_BYTES + e * 4);
    second[e] = ldsf(mine + lane * Tile::ROW_BYTES + (8 + e) * 4);
  }
  epilogue.columns(pair, g.pairs);
  epilogue.finish(row, first, second);
  epilogue.store(row, first, second);
}

// `buffers` are the ones the prologue and the epilogue touch.
template <class T, class Prologue, class Epilogue>
void gemm_few_rows(const char* name, const GemmProblem<T>& g, Prologue prologue, Epilogue epilogue,
                   std::vector<Buffer> buffers, void* stream) {
  const bool aligned = g.k % 8 == 0 && is_aligned16(g.a) && is_aligned16(g.w);
  buffers.push_back(reads(g.a, int64_t{g.m} * g.k));
  buffers.push_back(reads(g.w, int64_t{g.n} * g.k));
  const auto start = [&](auto tile) {
    using Tile = decltype(tile);
    launch(
        gemm_few_rows_kernel<T, Tile, Prologue, Epilogue>,
        {name, dim3(static_cast<unsigned>(g.pairs.total)), Tile::THREADS, Tile::SMEM_BYTES, stream},
        buffers, g, aligned, prologue, epilogue);
  };
  if (g.m <= 8)
    start(FewRowsTile<8>());
  else
    start(FewRowsTile<16>());
}
}  // namespace fusebench::cuda
