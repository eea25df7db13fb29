// The GEMM of every linear op on Hopper: out = epilogue(prologue(A[m, k]) @ W[n, k]^T), with the
// same prologues and epilogues as gemm_sm80.cuh. Warp group 0 drives the TMA unit, warp groups 1
// and 2 multiply a 64-row half of a tile each with wgmma. A ring of stages connects them: full[s]
// says that stage s has arrived, empty[s] that both halves have been multiplied. Finished results
// go through two slots of shared memory for each consumer, from which the TMA unit stores them.
// Blocks stay and walk over tiles, so the loads of the next tile run during the epilogue of the
// last, and its last stores during the multiplies of the next.
#pragma once
#include "gemm_problem.cuh"

namespace fusebench::cuda {
template <int BN_, int STAGES_>
struct TileSm90 {
  static constexpr int BM = 128, BN = BN_, BK = 64, STAGES = STAGES_, THREADS = 384;
  static constexpr int ROW_BYTES = BK * 2;  // one row of the 128-byte swizzle
  static constexpr int A_BYTES = BM * ROW_BYTES, W_BYTES = BN * ROW_BYTES;
  static constexpr int STAGE_BYTES = A_BYTES + W_BYTES;
  static constexpr int SLOTS = 2, SLOT_BYTES = 2 * kBoxBytes;  // of each consumer
  static constexpr int SLOTS_OFFSET = STAGES * STAGE_BYTES;
  static constexpr int BARRIERS_OFFSET = SLOTS_OFFSET + 2 * SLOTS * SLOT_BYTES;
  static constexpr int SMEM_BYTES = 1024 + BARRIERS_OFFSET + STAGES * 16;  // 1024: to align
  static constexpr int PAIRS = BN / 16, BLOCKS = BN / 64;
  static constexpr int W_BOX_ROWS = 32, W_BOX_BYTES = W_BOX_ROWS * ROW_BYTES;
};
using LargeTileSm90 = TileSm90<256, 4>;
using SmallTileSm90 = TileSm90<128, 6>;

// Position in the ring of stages and the parity of its lap.
template <int STAGES>
struct StageRing {
  int stage = 0;
  uint32_t parity = 0;
  DEV void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

// The fragments of 64 rows x 64 columns of A that a warp group multiplies from registers, once the
// norm has been applied to them.
template <class T>
struct NormFragments {
  uint32_t k16[4][4];

  // `tile`: the warp's 16 rows in shared memory; stats of rows lane / 4 and lane / 4 + 8.
  DEV void load(const NormPrologue<T>& norm, smem_t tile, int k0, int k, float2 low, float2 high) {
    const int lane = lane_id();
    UNROLL
    for (int i = 0; i < 4; i++) {
      ldmatrix_x4(k16[i], swizzle128(tile, lane % 16, i * 32 + lane / 16 * 16));
      UNROLL
      for (int h = 0; h < 2; h++) {  // columns c and c + 1 of both rows
        const int c = k0 + i * 16 + h * 8 + lane % 4 * 2;
        float2 weight = make_float2(1.f, 1.f), bias = make_float2(0.f, 0.f);
        if (norm.weight && c < k) weight = unpack2<T>(ldg(word(norm.weight + c)));
        if (norm.bias && c < k) bias = unpack2<T>(ldg(word(norm.bias + c)));
        k16[i][2 * h] = apply(k16[i][2 * h], low, weight, bias);
        k16[i][2 * h + 1] = apply(k16[i][2 * h + 1], high, weight, bias);
      }
    }
  }
  DEV static const uint32_t* word(const T* p) { return reinterpret_cast<const uint32_t*>(p); }
  DEV static uint32_t apply(uint32_t v, float2 row, float2 weight, float2 bias) {
    const float2 x = unpack2<T>(v);
    return pack2<T>((x.x - row.x) * row.y * weight.x + bias.x,
                    (x.y - row.x) * row.y * weight.y + bias.y);
  }
};

template <class T, class Tile, class Prologue, class Epilogue>
KERNEL(Tile::THREADS, 1)
gemm_sm90_kernel(GRID_CONSTANT tensor_map map_a, GRID_CONSTANT tensor_map map_w, int m, int k,
                 ColumnPairs pairs, TileOrder order, Prologue prologue, Epilogue epilogue,
                 GRID_CONSTANT StoreMaps<Epilogue::kOutputs> outputs) {
  if constexpr (kHasSm90a) {
    const smem_t smem = (smem_base() + 1023) & ~1023u;
    const smem_t full = smem + Tile::BARRIERS_OFFSET, empty = full + Tile::STAGES * 8;
    const int warp = warp_id(), group = warp / 4, lane = lane_id();
    const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
    const int tiles = order.tiles(), steps = ceil_div(k, Tile::BK);

    if (threadIdx.x == 0) {
      for (int s = 0; s < Tile::STAGES; s++) {
        SIM_LABEL(full + s * 8, "full", s);
        SIM_LABEL(empty + s * 8, "empty", s);
        mbar_init(full + s * 8, 1);   // the producer, which announces the bytes
        mbar_init(empty + s * 8, 8);  // the consumer warps
      }
      fence_mbar_init();
    }
    sync_block();
    StageRing<Tile::STAGES> ring;

    if (group == 0) {  // ------------------------------------------------------------- producer
      setmaxnreg_dec<24>();
      if (warp != 0 || !elect_one()) return;
      tma_prefetch(&map_a);
      tma_prefetch(&map_w);
      for (int i = 0; i < Epilogue::kOutputs; i++) tma_prefetch(&outputs.map[i]);
      for (int tile = block; tile < tiles; tile += blocks) {
        int tile_m, tile_n;
        order.locate(tile, tile_m, tile_n);
        for (int step = 0; step < steps; step++, ring.advance()) {
          const smem_t a = smem + ring.stage * Tile::STAGE_BYTES, bar = full + ring.stage * 8;
          mbar_wait(empty + ring.stage * 8, ring.parity ^ 1);
          mbar_arrive_expect_tx(bar, Tile::STAGE_BYTES);
          tma_load_2d(a, &map_a, bar, step * Tile::BK, tile_m * Tile::BM);
          UNROLL
          for (int b = 0; b < Tile::BLOCKS * 2; b++) {  // the two chunks of four pairs
            const int column = pairs.first(tile_n * Tile::PAIRS + b / 2 * 4) + b % 2 * pairs.half;
            tma_load_4d(a + Tile::A_BYTES + b * Tile::W_BOX_BYTES, &map_w, bar, step * Tile::BK, 0,
                        column / 8, 0);
          }
        }
      }
      return;
    }
    // ------------------------------------------------------------------------------ consumers
    setmaxnreg_inc<240>();
    const int half = group - 1;
    // Result i of 8 of the first chunk of a pair, in row h; the second chunk lies 16 on.
    const auto at = [](int b, int h, int i) { return b * 32 + i / 2 * 4 + h * 2 + i % 2; };
    const bool storer = threadIdx.x % 128 == 0;  // of this consumer's results
    const smem_t slots = smem + Tile::SLOTS_OFFSET + half * Tile::SLOTS * Tile::SLOT_BYTES;
    for (int tile = block; tile < tiles; tile += blocks) {
      int tile_m, tile_n;
      order.locate(tile, tile_m, tile_n);
      const int row = tile_m * Tile::BM + half * 64 + warp % 4 * 16 + lane / 4;  // and row + 8
      float acc[Tile::BN / 2];
      int behind = 0;  // the stage before this one
      const auto release = [&](int stage) {
        if (lane == 0) mbar_arrive(empty + stage * 8);
      };
      if constexpr (Prologue::kActive) {
        const float2 none = make_float2(0.f, 0.f);
        const float2 low = row < m ? ldg(prologue.stats + row) : none;
        const float2 high = row + 8 < m ? ldg(prologue.stats + row + 8) : none;
        const auto multiply = [&](int step, NormFragments<T>& a) {
          mbar_wait(full + ring.stage * 8, ring.parity);
          const smem_t stage = smem + ring.stage * Tile::STAGE_BYTES;
          a.load(prologue, stage + (half * 64 + warp % 4 * 16) * Tile::ROW_BYTES, step * Tile::BK,
                 k, low, high);
          keep(acc);
          wgmma_fence();
          UNROLL
          for (int i = 0; i < 4; i++)
            wgmma_rs<T, Tile::BN>(
                acc, a.k16[i],
                make_descriptor(stage + Tile::A_BYTES + i * 32, 16, 1024, kSwizzle128),
                step + i > 0);
          wgmma_commit();
          wgmma_wait<1>();  // the stage behind has been multiplied, its fragments are free
          sync_warp();      // and this warp's lanes have read their rows of A
          if (step > 0) release(behind);
          behind = ring.stage;
          ring.advance();
        };
        NormFragments<T> even, odd;
        for (int step = 0; step < steps; step += 2) {
          multiply(step, even);
          if (step + 1 < steps) multiply(step + 1, odd);
        }
        wgmma_wait<0>();
      } else {
        for (int step = 0; step < steps; step++) {
          mbar_wait(full + ring.stage * 8, ring.parity);
          const smem_t stage = smem + ring.stage * Tile::STAGE_BYTES;
          keep(acc);
          wgmma_fence();
          UNROLL
          for (int i = 0; i < 4; i++)  // 16 columns are 32 bytes
            wgmma_ss<T, Tile::BN>(
                acc,
                make_descriptor(stage + half * 64 * Tile::ROW_BYTES + i * 32, 16, 1024,
                                kSwizzle128),
                make_descriptor(stage + Tile::A_BYTES + i * 32, 16, 1024, kSwizzle128),
                step + i > 0);
          wgmma_commit();
          wgmma_wait<1>();  // the stage behind has been multiplied
          if (step > 0) release(behind);
          behind = ring.stage;
          ring.advance();
        }
        wgmma_wait<0>();
      }
      keep(acc);
      release(behind);

      // Finishes all results where they are before any is stored, so that the loads of bias,
      // residual and rotation do not wait for the barriers and stores of the block before.
      Epilogue e = epilogue;
      e.assume_aligned();
      UNROLL
      for (int b = 0; b < Tile::BLOCKS; b++) {
        const int pair = tile_n * Tile::PAIRS + b * 4 + lane % 4;
        if (pair >= pairs.total) continue;
        e.columns(pair, pairs);
        UNROLL
        for (int h = 0; h < 2; h++) {
          if (row + h * 8 >= m) continue;
          float first[8], second[8];
          UNROLL
          for (int i = 0; i < 8; i++)
            first[i] = acc[at(b, h, i)], second[i] = acc[at(b, h, i) + 16];
          e.finish(row + h * 8, first, second);
          UNROLL
          for (int i = 0; i < 8; i++)
            acc[at(b, h, i)] = first[i], acc[at(b, h, i) + 16] = second[i];
        }
      }
      UNROLL
      for (int b = 0; b < Tile::BLOCKS; b++) {
        const int pair = tile_n * Tile::PAIRS + b * 4;
        if (pair >= pairs.total) break;
        const smem_t slot = slots + b % Tile::SLOTS * Tile::SLOT_BYTES;
        if (storer) bulk_wait_read<Tile::SLOTS - 1>();
        named_barrier_sync(1 + half, 128);  // the slot has been read
        UNROLL
        for (int h = 0; h < 2; h++) {
          const smem_t chunk =
              slot + (warp % 4 * 16 + h * 8 + lane / 4) * (kBoxColumns * 2) + lane % 4 * 16;
          UNROLL
          for (int c = 0; c < Epilogue::kChunks; c++) {
            float v[8];
            UNROLL
            for (int i = 0; i < 8; i++) v[i] = acc[at(b, h, i) + c * 16];
            sts128(chunk + c * kBoxBytes, pack8<T>(v));
          }
        }
        fence_proxy_async();
        named_barrier_sync(1 + half, 128);  // and holds the results of all
        if (storer) {
          e.place(pair, pairs);
          e.store_boxes(outputs, slot, row, m);
          bulk_commit();
        }
      }
    }
    if (storer) bulk_wait_read<0>();  // shared memory must outlive the stores
  }
}

// Whether the problem fits: TMA wants rows on 16-byte boundaries (and the epilogue expects as
// much), and a box of W takes the same chunk of four neighbouring pairs. The rest goes to the loop
// of gemm_sm80.cuh, which stores from registers.
template <class T, class Prologue, class Epilogue>
bool fits_sm90(const GemmProblem<T>& g, const Prologue& prologue, const Epilogue& epilogue) {
  if constexpr (Prologue::kActive)
    if (!prologue.aligned) return false;
  return has_sm90a() && epilogue.fits_sm90() && g.k >= 8 && g.k % 8 == 0 && g.n % 8 == 0 &&
         g.pairs.half % 8 == 0 &&
         (g.pairs.per_span % 4 == 0 || g.pairs.per_span >= g.pairs.total) && is_aligned16(g.a) &&
         is_aligned16(g.w);
}

// W with its rows in the order in which a lane's accumulators are 8 neighbouring columns: row
// 8 q + 2 j + e of W is row 8 j + 2 q + e of a box of 4 q's.
template <class T>
tensor_map weight_map(const GemmProblem<T>& g) {
  const uint64_t row = static_cast<uint64_t>(g.k) * 2, k = static_cast<uint64_t>(g.k);
  return make_tensor_map<T>(g.w, {4,
                                  {k, 2, static_cast<uint64_t>(g.n / 8), 4},
                                  {row, 8 * row, 2 * row},
                                  {64, 2, 4, 4},
                                  kSwizzle128});
}

// `buffers` are the ones the prologue and the epilogue touch.
template <class T, class Tile, class Prologue, class Epilogue>
void launch_gemm_sm90(const char* name, const GemmProblem<T>& g, Prologue prologue,
                      Epilogue epilogue, std::vector<Buffer> buffers, void* stream) {
  const TileOrder order{ceil_div(g.m, Tile::BM), ceil_div(g.pairs.total, Tile::PAIRS)};
  const uint64_t k = static_cast<uint64_t>(g.k);
  const tensor_map map_a = make_tensor_map<T>(
      g.a, {2, {k, static_cast<uint64_t>(g.m)}, {k * 2}, {64, Tile::BM}, kSwizzle128});
  buffers.push_back(reads(g.a, int64_t{g.m} * g.k));
  buffers.push_back(reads(g.w, int64_t{g.n} * g.k));
  const int blocks = min_of(order.tiles(), multiprocessors());
  launch(gemm_sm90_kernel<T, Tile, Prologue, Epilogue>,
         {name, dim3(static_cast<unsigned>(blocks)), Tile::THREADS, Tile::SMEM_BYTES, stream},
         buffers, map_a, weight_map(g), g.m, g.k, g.pairs, order, prologue, epilogue,
         epilogue.maps(g.m));
}

template <class T, class Prologue, class Epilogue>
void gemm_sm90(const char* name, const GemmProblem<T>& g, Prologue prologue, Epilogue epilogue,
               std::vector<Buffer> buffers, void* stream) {
  const int64_t large_tiles =
      int64_t{ceil_div(g.m, LargeTileSm90::BM)} * ceil_div(g.pairs.total, LargeTileSm90::PAIRS);
  if (large_tiles >= multiprocessors())
    launch_gemm_sm90<T, LargeTileSm90>(name, g, prologue, epilogue, std::move(buffers), stream);
  else
    launch_gemm_sm90<T, SmallTileSm90>(name, g, prologue, epilogue, std::move(buffers), stream);
}
}  // namespace fusebench::cuda
