// The GEMM of every linear op on sm_80 and later: out = epilogue(prologue(A[m, k]) @ W[n, k]^T).
// A ring of cp.async stages feeds mma.sync. Prologue and epilogue are types:
//   prologue  rewrites 8 values of one row of A in shared memory before they are multiplied
//   epilogue  takes 8 + 8 float32 results of one row and finishes them in registers
#pragma once
#include <vector>

#include "launch.cuh"
#include "ptx.cuh"
#include "rows.cuh"
#include "tiles.cuh"

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

template <int BM_, int BN_, int BK_, int WARPS_M_, int WARPS_N_, int STAGES_, int MIN_BLOCKS_>
struct Tile {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, WARPS_M = WARPS_M_, WARPS_N = WARPS_N_,
                       STAGES = STAGES_, MIN_BLOCKS = MIN_BLOCKS_;
  static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
  static constexpr int ROW_BYTES = BK * 2, STAGE_BYTES = (BM + BN) * ROW_BYTES;
  static constexpr int SMEM_BYTES = STAGES * STAGE_BYTES;
  static constexpr int MI = BM / WARPS_M / 16;  // 16-row fragments of a warp
  static constexpr int LANES_PER_ROW = BK / 8, ROWS_PER_PASS = THREADS / LANES_PER_ROW;
  static constexpr int A_PASSES = BM / ROWS_PER_PASS, W_PASSES = BN / ROWS_PER_PASS;
  static_assert(BN / WARPS_N == 64, "a warp's 64 columns are one pair for each lane of a quad");
};
// Warps of 64x64 halve the shared-memory traffic per multiply; two blocks share an SM.
using LargeTile = Tile<128, 128, 32, 2, 2, 4, 2>;
// Enough blocks for small problems, long k steps for few barriers.
using SmallTile = Tile<64, 64, 64, 4, 1, 4, 3>;

// ---------------------------------------------------------------------------------- prologues ---
struct NoPrologue {
  static constexpr bool kActive = false;
};

// LayerNorm or RMSNorm of the rows of A with statistics from row_stats, rounded once to T as the
// unfused norm rounds its result. A thread rewrites the very chunks it copied, so waiting for its
// own copies is enough, and the barrier that publishes the stage publishes the result.
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
  DEV void apply(smem_t chunk, float2 row, const Columns& c) const {
    const uint4 u = lds128(chunk);
    const uint32_t words[4] = {u.x, u.y, u.z, u.w};
    float v[8];
    UNROLL
    for (int i = 0; i < 4; i++) {
      const float2 f = unpack2<T>(words[i]);
      v[2 * i] = (f.x - row.x) * row.y * c.weight[2 * i] + c.bias[2 * i];
      v[2 * i + 1] = (f.y - row.x) * row.y * c.weight[2 * i + 1] + c.bias[2 * i + 1];
    }
    sts128(chunk, pack8<T>(v));
  }
};

// ---------------------------------------------------------------------------------- main loop ---
// Copies one stage of A and W. Rows and columns outside the matrices become zeros.
template <class T, class Tile>
struct StageLoader {
  const T *a, *w[Tile::W_PASSES];
  int64_t a_step;
  int a_rows, k;
  bool aligned;
  int row, chunk;

  DEV StageLoader(const GemmProblem<T>& g, bool aligned_, int m0, int pair0)
      : k(g.k), aligned(aligned_) {
    const int thread = static_cast<int>(threadIdx.x);
    row = thread / Tile::LANES_PER_ROW, chunk = thread % Tile::LANES_PER_ROW;
    a = g.a + static_cast<int64_t>(m0 + row) * k;
    a_step = static_cast<int64_t>(Tile::ROWS_PER_PASS) * k;
    a_rows = g.m - m0;
    UNROLL
    for (int i = 0; i < Tile::W_PASSES; i++) {
      // Rows are laid out so that a lane's accumulators are 8 neighbouring columns of each half.
      const int r = row + i * Tile::ROWS_PER_PASS;
      const int pair = pair0 + r / 64 * 4 + r % 8 / 2, element = r / 8 % 4 * 2 + r % 2;
      const int column = g.pairs.first(pair) + (r / 32 % 2 ? g.pairs.half : 0) + element;
      const bool exists = pair < g.pairs.total && element < g.pairs.count(pair) && column < g.n;
      w[i] = exists ? g.w + static_cast<int64_t>(column) * k : nullptr;
    }
  }
  DEV smem_t a_chunk(smem_t stage, int pass) const {
    return chunk_address<Tile::ROW_BYTES>(stage, row + pass * Tile::ROWS_PER_PASS, chunk);
  }
  DEV void copy(smem_t dst, const T* src, int count) const {
    if (aligned) {
      cp_async16(dst, src, count * 2);
    } else {  // k is no multiple of 8, or an operand is not on a 16-byte boundary
      float v[8];
      load8(src, count, false, v);
      sts128(dst, pack8<T>(v));
    }
  }
  DEV void load(smem_t stage, int k0) const {
    k0 += chunk * 8;
    const int count = max_of(0, min_of(8, k - k0));
    UNROLL
    for (int i = 0; i < Tile::A_PASSES; i++) {
      const bool inside = count > 0 && row + i * Tile::ROWS_PER_PASS < a_rows;
      copy(a_chunk(stage, i), inside ? a + i * a_step + k0 : a, inside ? count : 0);
    }
    const smem_t w_tile = stage + Tile::BM * Tile::ROW_BYTES;
    UNROLL
    for (int i = 0; i < Tile::W_PASSES; i++) {
      const bool inside = count > 0 && w[i] != nullptr;
      copy(chunk_address<Tile::ROW_BYTES>(w_tile, row + i * Tile::ROWS_PER_PASS, chunk),
           inside ? w[i] + k0 : a, inside ? count : 0);
    }
  }
};

template <class T, class Tile, class Prologue, class Epilogue>
KERNEL(Tile::THREADS, Tile::MIN_BLOCKS)
gemm_kernel(GemmProblem<T> g, bool aligned, int tiles_m, int tiles_n, Prologue prologue,
            Epilogue epilogue) {
  // Blocks that run together share rows and columns: 8 tiles of rows, then the next column tile.
  constexpr int kGroup = 8;
  const int block = static_cast<int>(blockIdx.x), group = block / (kGroup * tiles_n) * kGroup;
  const int group_rows = min_of(kGroup, tiles_m - group);
  const int in_group = block % (kGroup * tiles_n);
  const int m0 = (group + in_group % group_rows) * Tile::BM;
  const int pair0 = in_group / group_rows * (Tile::BN / 16);

  const smem_t smem = smem_base();
  const StageLoader<T, Tile> loader(g, aligned, m0, pair0);
  const int steps = ceil_div(g.k, Tile::BK);
  const auto stage_of = [&](int step) {
    return smem + static_cast<smem_t>(step % Tile::STAGES * Tile::STAGE_BYTES);
  };

  float2 stats[Tile::A_PASSES];
  if constexpr (Prologue::kActive) {
    UNROLL
    for (int i = 0; i < Tile::A_PASSES; i++) {
      const int r = m0 + loader.row + i * Tile::ROWS_PER_PASS;
      stats[i] = r < g.m ? ldg(prologue.stats + r) : make_float2(0.f, 0.f);
    }
  }
  const auto apply_prologue = [&](int step) {
    if constexpr (Prologue::kActive) {
      const int k0 = step * Tile::BK + loader.chunk * 8, count = max_of(0, min_of(8, g.k - k0));
      const auto columns = prologue.columns(k0, count);
      UNROLL
      for (int i = 0; i < Tile::A_PASSES; i++)
        prologue.apply(loader.a_chunk(stage_of(step), i), stats[i], columns);
    }
  };

  UNROLL
  for (int s = 0; s < Tile::STAGES - 1; s++) {
    if (s < steps) loader.load(stage_of(s), s * Tile::BK);
    cp_async_commit();
  }
  cp_async_wait<Tile::STAGES - 2>();
  if (steps > 0) apply_prologue(0);

  const int lane = lane_id(), warp = warp_id();
  const int warp_m = warp / Tile::WARPS_N * (Tile::MI * 16), warp_n = warp % Tile::WARPS_N * 64;
  float acc[Tile::MI][8][4] = {};
  NO_UNROLL
  for (int step = 0; step < steps; step++) {
    sync_block();  // stage `step` is there for all, and all have left the one loaded next
    const int ahead = step + Tile::STAGES - 1;
    if (ahead < steps) loader.load(stage_of(ahead), ahead * Tile::BK);
    cp_async_commit();
    const smem_t a_lane = rows_lane<Tile::ROW_BYTES>(stage_of(step)),
                 w_lane =
                     columns_lane<Tile::ROW_BYTES>(stage_of(step) + Tile::BM * Tile::ROW_BYTES);
    UNROLL
    for (int kk = 0; kk < Tile::BK / 8; kk += 2) {
      uint32_t a[Tile::MI][4];
      UNROLL
      for (int i = 0; i < Tile::MI; i++)
        ldmatrix_x4(a[i], step_to<Tile::ROW_BYTES>(a_lane, warp_m + i * 16, kk));
      UNROLL
      for (int j = 0; j < 8; j += 2) {
        uint32_t b[4];
        ldmatrix_x4(b, step_to<Tile::ROW_BYTES>(w_lane, warp_n + j * 8, kk));
        UNROLL
        for (int i = 0; i < Tile::MI; i++) {
          mma_m16n8k16<T>(acc[i][j], a[i], b[0], b[1]);
          mma_m16n8k16<T>(acc[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
    cp_async_wait<Tile::STAGES - 2>();
    if (step + 1 < steps) apply_prologue(step + 1);
  }

  const int pair = pair0 + warp_n / 16 + lane % 4;
  if (pair >= g.pairs.total) return;
  epilogue.columns(pair, g.pairs);
  UNROLL
  for (int i = 0; i < Tile::MI; i++) {
    UNROLL
    for (int h = 0; h < 2; h++) {
      const int row = m0 + warp_m + i * 16 + h * 8 + lane / 4;
      if (row >= g.m) continue;
      float first[8], second[8];
      UNROLL
      for (int e = 0; e < 8; e++) {
        first[e] = acc[i][e / 2][h * 2 + e % 2];
        second[e] = acc[i][4 + e / 2][h * 2 + e % 2];
      }
      epilogue.store(row, first, second);
    }
  }
}

// ----------------------------------------------------------------------------------- launcher ---
// `buffers` are the ones the prologue and the epilogue touch.
template <class T, class Tile, class Prologue, class Epilogue>
void launch_gemm(const char* name, const GemmProblem<T>& g, Prologue prologue, Epilogue epilogue,
                 std::vector<Buffer> buffers, void* stream) {
  const int tiles_m = ceil_div(g.m, Tile::BM), tiles_n = ceil_div(g.pairs.total, Tile::BN / 16);
  const bool aligned = g.k % 8 == 0 && is_aligned16(g.a) && is_aligned16(g.w);
  buffers.push_back(reads(g.a, int64_t{g.m} * g.k));
  buffers.push_back(reads(g.w, int64_t{g.n} * g.k));
  const dim3 grid(static_cast<unsigned>(tiles_m) * static_cast<unsigned>(tiles_n));
  launch(gemm_kernel<T, Tile, Prologue, Epilogue>,
         {name, grid, Tile::THREADS, Tile::SMEM_BYTES, stream}, buffers, g, aligned, tiles_m,
         tiles_n, prologue, epilogue);
}

template <class T, class Prologue, class Epilogue>
void gemm(const char* name, const GemmProblem<T>& g, Prologue prologue, Epilogue epilogue,
          std::vector<Buffer> buffers, void* stream) {
  const int64_t large_tiles =
      int64_t{ceil_div(g.m, LargeTile::BM)} * ceil_div(g.pairs.total, LargeTile::BN / 16);
  if (large_tiles >= multiprocessors())
    launch_gemm<T, LargeTile>(name, g, prologue, epilogue, std::move(buffers), stream);
  else
    launch_gemm<T, SmallTile>(name, g, prologue, epilogue, std::move(buffers), stream);
}

// The same behind a norm: statistics first, then the GEMM with the norm in its prologue.
template <class T, class Epilogue>
void norm_gemm(const char* name, const GemmProblem<T>& g, const Norm& norm, Epilogue epilogue,
               std::vector<Buffer> buffers, void* stream) {
  if (norm.kind == NormKind::kNone)
    return gemm(name, g, NoPrologue(), epilogue, std::move(buffers), stream);
  row_stats(g.a, g.m, g.k, norm, stream);
  const auto* stats = static_cast<const float2*>(norm.stats);
  const auto *weight = static_cast<const T*>(norm.weight), *bias = static_cast<const T*>(norm.bias);
  buffers.push_back(reads(stats, g.m));
  buffers.push_back(reads(weight, g.k));
  buffers.push_back(reads(bias, g.k));
  const bool aligned = is_aligned16(weight) && is_aligned16(bias);
  gemm(name, g, NormPrologue<T>{stats, weight, bias, aligned}, epilogue, std::move(buffers),
       stream);
}
}  // namespace fusebench::cuda
