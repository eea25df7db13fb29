// The GEMM of every linear op on sm_80 and later: out = epilogue(prologue(A[m, k]) @ W[n, k]^T).
// A ring of cp.async stages feeds mma.sync. It takes every size and alignment.
#pragma once
#include "gemm_problem.cuh"
#include "tiles.cuh"

namespace fusebench::cuda {
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
gemm_sm80_kernel(GemmProblem<T> g, bool aligned, TileOrder order, Prologue prologue,
                 Epilogue epilogue) {
  int tile_m, tile_n;
  order.locate(static_cast<int>(blockIdx.x), tile_m, tile_n);
  const int m0 = tile_m * Tile::BM, pair0 = tile_n * (Tile::BN / 16);
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
      epilogue.finish(row, first, second);
      epilogue.store(row, first, second);
    }
  }
}

// ----------------------------------------------------------------------------------- launcher ---
// `buffers` are the ones the prologue and the epilogue touch.
template <class T, class Tile, class Prologue, class Epilogue>
void launch_gemm_sm80(const char* name, const GemmProblem<T>& g, Prologue prologue,
                      Epilogue epilogue, std::vector<Buffer> buffers, void* stream) {
  const TileOrder order{ceil_div(g.m, Tile::BM), ceil_div(g.pairs.total, Tile::BN / 16)};
  const bool aligned = g.k % 8 == 0 && is_aligned16(g.a) && is_aligned16(g.w);
  buffers.push_back(reads(g.a, int64_t{g.m} * g.k));
  buffers.push_back(reads(g.w, int64_t{g.n} * g.k));
  launch(
      gemm_sm80_kernel<T, Tile, Prologue, Epilogue>,
      {name, dim3(static_cast<unsigned>(order.tiles())), Tile::THREADS, Tile::SMEM_BYTES, stream},
      buffers, g, aligned, order, prologue, epilogue);
}

template <class T, class Prologue, class Epilogue>
void gemm_sm80(const char* name, const GemmProblem<T>& g, Prologue prologue, Epilogue epilogue,
               std::vector<Buffer> buffers, void* stream) {
  const int64_t large_tiles =
      int64_t{ceil_div(g.m, LargeTile::BM)} * ceil_div(g.pairs.total, LargeTile::BN / 16);
  if (large_tiles >= multiprocessors())
    launch_gemm_sm80<T, LargeTile>(name, g, prologue, epilogue, std::move(buffers), stream);
  else
    launch_gemm_sm80<T, SmallTile>(name, g, prologue, epilogue, std::move(buffers), stream);
}
}  // namespace fusebench::cuda
