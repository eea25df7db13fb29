// sdpa forward on Hopper: one producer warp group feeds keys and values through TMA, two consumer
// warp groups of 64 queries multiply with wgmma. They take turns at the tensor cores, so that the
// softmax of one runs under the multiplies of the other; within one, the scores of the next keys
// are multiplied before the values of the last ones are (FlashAttention-3).
#include "attention.cuh"
#include "sdpa_sm90.h"

namespace fusebench::cuda {
namespace {
template <int D_>
struct HopperTile {
  static constexpr int D = D_, PANELS = D / 64;  // 64 columns are the 128 bytes of a swizzled row
  static constexpr int ROWS = 128, KEYS = 128, STAGES = 2, THREADS = 384;
  static constexpr int PANEL_BYTES = KEYS * 128, TILE_BYTES = PANELS * PANEL_BYTES;
  static constexpr int K_OFFSET = TILE_BYTES, V_OFFSET = K_OFFSET + STAGES * TILE_BYTES;
  static constexpr int BARRIER_OFFSET = V_OFFSET + STAGES * TILE_BYTES;
  static constexpr int SMEM_BYTES = BARRIER_OFFSET + 8 * (1 + 4 * STAGES) + 1024;  // + alignment
  static_assert(ROWS == KEYS, "queries, keys and values lie in tiles of one shape");
};

// A position in a ring of stages, and the parity of the lap.
template <int STAGES>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  DEV void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

// Barriers of a ring: full is completed by the copies, empty by the 8 consumer warps.
template <int STAGES>
struct RingBarriers {
  smem_t base;
  DEV smem_t full(int stage) const { return base + static_cast<smem_t>(stage * 8); }
  DEV smem_t empty(int stage) const { return base + static_cast<smem_t>((STAGES + stage) * 8); }
  DEV void init(const char* full_name, const char* empty_name) const {
    (void)full_name, (void)empty_name;
    for (int s = 0; s < STAGES; s++) {
      SIM_LABEL(full(s), full_name, s);
      SIM_LABEL(empty(s), empty_name, s);
      mbar_init(full(s), 1);
      mbar_init(empty(s), 8);
    }
  }
};

// acc[64 x 128] = queries @ keys^T; both tiles have head_dim contiguous.
template <class T, class Tile>
DEV void multiply_scores(float (&scores)[Tile::KEYS / 2], smem_t queries, smem_t keys) {
  keep(scores);
  wgmma_fence();
  UNROLL
  for (int kk = 0; kk < Tile::D; kk += 16) {
    const smem_t at = static_cast<smem_t>(kk / 64 * Tile::PANEL_BYTES + kk % 64 * 2);
    wgmma_ss<T, Tile::KEYS>(scores, make_descriptor(queries + at, 16, 1024, kSwizzle128),
                            make_descriptor(keys + at, 16, 1024, kSwizzle128), kk > 0);
  }
  wgmma_commit();
}
// acc[64 x D] (+)= probabilities @ values; values have head_dim contiguous, which is n here.
template <class T, class Tile>
DEV void multiply_values(float (&acc)[Tile::D / 2], const uint32_t (&p)[Tile::KEYS / 16][4],
                         smem_t values, int add) {
  keep(acc);
  wgmma_fence();
  UNROLL
  for (int kk = 0; kk < Tile::KEYS / 16; kk++)
    wgmma_rs<T, Tile::D, 1>(acc, p[kk],
                            make_descriptor(values + static_cast<smem_t>(kk * 2048),
                                            Tile::PANEL_BYTES, 1024, kSwizzle128),
                            kk > 0 ? 1 : add);
  wgmma_commit();
}

template <class T, class Tile>
KERNEL(Tile::THREADS, 1)
sdpa_sm90_kernel(GRID_CONSTANT tensor_map q_map, GRID_CONSTANT tensor_map k_map,
                 GRID_CONSTANT tensor_map v_map, GRID_CONSTANT tensor_map out_map,
                 AttentionShape shape, BlockOrder order, int heads_per_kv_head, float* lse) {
  if constexpr (kHasSm90a) {
    constexpr int D = Tile::D, KEYS = Tile::KEYS, PANELS = Tile::PANELS;
    // Swizzled tiles start on 1024-byte boundaries.
    const smem_t q_tile = (smem_base() + 1023) & ~1023u, barriers = q_tile + Tile::BARRIER_OFFSET;
    const smem_t k_tiles = q_tile + Tile::K_OFFSET, v_tiles = q_tile + Tile::V_OFFSET;
    const smem_t q_full = barriers;
    using Barriers = RingBarriers<Tile::STAGES>;
    const Barriers k_ring{barriers + 8}, v_ring{barriers + 8 + 16 * Tile::STAGES};
    const BlockOrder::Place place = order.of_block();
    const int batch = place.head / shape.heads, head = place.head % shape.heads;
    // The last queries see the most keys under a causal mask: they start first.
    const int row0 = (order.blocks - 1 - place.block) * Tile::ROWS;
    const int last_row = min_of(row0 + Tile::ROWS, shape.q_tokens) - 1;
    const int tiles = ceil_div(shape.last_key(last_row) + 1, KEYS);
    const int group = warp_id() / 4;

    if (threadIdx.x == 0) {
      SIM_LABEL(q_full, "q_full", 0);
      mbar_init(q_full, 1);
      k_ring.init("k_full", "k_empty");
      v_ring.init("v_full", "v_empty");
      fence_mbar_init();
    }
    sync_block();

    if (group == 0) {  // ------------------------------------------------------------ producer
      setmaxnreg_dec<24>();
      if (warp_id() == 0 && elect_one()) {
        const auto load = [&](smem_t tile, const tensor_map& map, smem_t bar, int token, int h) {
          mbar_arrive_expect_tx(bar, Tile::TILE_BYTES);
          for (int panel = 0; panel < PANELS; panel++)
            tma_load_4d(tile + static_cast<smem_t>(panel * Tile::PANEL_BYTES), &map, bar,
                        panel * 64, token, h, batch);
        };
        const int kv_head = head / heads_per_kv_head;
        load(q_tile, q_map, q_full, row0, head);
        Ring<Tile::STAGES> ring;
        for (int tile = tiles - 1; tile >= 0; tile--, ring.next()) {
          const smem_t at = static_cast<smem_t>(ring.stage * Tile::TILE_BYTES);
          mbar_wait(k_ring.empty(ring.stage), ring.parity ^ 1);
          load(k_tiles + at, k_map, k_ring.full(ring.stage), tile * KEYS, kv_head);
          mbar_wait(v_ring.empty(ring.stage), ring.parity ^ 1);
          load(v_tiles + at, v_map, v_ring.full(ring.stage), tile * KEYS, kv_head);
        }
      }
    } else {  // --------------------------------------------------------------------- consumers
      setmaxnreg_inc<240>();
      const int consumer = group - 1, lane = lane_id(), warp = warp_id() % 4;
      const smem_t queries = q_tile + static_cast<smem_t>(consumer * 64 * 128);
      const int my_row = row0 + consumer * 64 + warp * 16 + lane / 4;  // and the one 8 below
      // Turns at the tensor cores: barrier 1 lets the first consumer in, barrier 2 the second.
      const auto wait_for_turn = [&] { named_barrier_sync(1 + consumer, 256); };
      const auto give_turn = [&](bool last) {
        if (consumer == 0 || !last) named_barrier_arrive(2 - consumer, 256);
      };
      if (consumer == 1) named_barrier_arrive(1, 256);

      float scores[KEYS / 2], acc[D / 2], rescale[2];
      uint32_t p[KEYS / 16][4];
      OnlineSoftmax softmax[2];
      // Tiles before this one are seen whole by every query of the block.
      const int first_masked = (shape.last_key(row0) + 1) / KEYS;
      const auto make_probabilities = [&](int tile) {
        if (tile >= first_masked) {
          UNROLL
          for (int h = 0; h < 2; h++)
            hide_keys(scores, h, shape.last_key(my_row + h * 8) - tile * KEYS);
        }
        UNROLL
        for (int h = 0; h < 2; h++) rescale[h] = softmax[h].step(scores, h, shape.scale_log2);
      };
      const auto pack_probabilities = [&] {
        UNROLL
        for (int kk = 0; kk < KEYS / 16; kk++) {
          UNROLL
          for (int i = 0; i < 4; i++)
            p[kk][i] = pack2<T>(scores[kk * 8 + i * 2], scores[kk * 8 + i * 2 + 1]);
        }
      };
      const auto release = [&](const Barriers& ring, int stage) {
        if (lane == 0) mbar_arrive(ring.empty(stage));
      };
      const auto k_tile = [&](int stage) {
        return k_tiles + static_cast<smem_t>(stage * Tile::TILE_BYTES);
      };
      const auto v_tile = [&](int stage) {
        return v_tiles + static_cast<smem_t>(stage * Tile::TILE_BYTES);
      };

      Ring<Tile::STAGES> k_at, v_at;
      mbar_wait(q_full, 0);
      mbar_wait(k_ring.full(0), 0);
      wait_for_turn();
      multiply_scores<T, Tile>(scores, queries, k_tile(0));
      give_turn(tiles == 1);
      wgmma_wait<0>();
      keep(scores);
      release(k_ring, 0);
      k_at.next();
      make_probabilities(tiles - 1);
      pack_probabilities();

      NO_UNROLL
      for (int tile = tiles - 2; tile >= 0; tile--) {
        mbar_wait(k_ring.full(k_at.stage), k_at.parity);
        wait_for_turn();
        multiply_scores<T, Tile>(scores, queries, k_tile(k_at.stage));
        mbar_wait(v_ring.full(v_at.stage), v_at.parity);
        multiply_values<T, Tile>(acc, p, v_tile(v_at.stage), tile < tiles - 2);
        give_turn(tile == 0);
        wgmma_wait<1>();
        keep(scores);
        release(k_ring, k_at.stage);
        k_at.next();
        make_probabilities(tile);
        wgmma_wait<0>();
        keep(acc);
        release(v_ring, v_at.stage);
        v_at.next();
        UNROLL
        for (int h = 0; h < 2; h++) multiply_row(acc, h, rescale[h]);
        pack_probabilities();
      }
      mbar_wait(v_ring.full(v_at.stage), v_at.parity);
      multiply_values<T, Tile>(acc, p, v_tile(v_at.stage), tiles > 1);
      wgmma_wait<0>();
      keep(acc);

      UNROLL
      for (int h = 0; h < 2; h++) {
        const float sum = softmax[h].total();
        multiply_row(acc, h, sum > 0.f ? 1.f / sum : 0.f);
        const int row = my_row + h * 8;
        if (lse && lane % 4 == 0 && row < shape.q_tokens)
          stg(lse + shape.lse_index(batch, head, row), softmax[h].lse(sum, shape.scale));
      }
      // This group's queries have been read: their room takes its part of the output.
      UNROLL
      for (int i = 0; i < D / 2; i += 2) {
        const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2;
        const smem_t panel = queries + static_cast<smem_t>(column / 64 * Tile::PANEL_BYTES);
        sts32(swizzle128(panel, row, column % 64 * 2), pack2<T>(acc[i], acc[i + 1]));
      }
      fence_proxy_async();
      named_barrier_sync(3 + consumer, 128);
      if (warp == 0 && elect_one()) {
        for (int panel = 0; panel < PANELS; panel++)
          tma_store_4d(&out_map, queries + static_cast<smem_t>(panel * Tile::PANEL_BYTES),
                       panel * 64, row0 + consumer * 64, head, batch);
        bulk_commit();
        bulk_wait_read<0>();  // shared memory must outlive the copy
      }
    }
  }
}

template <class T>
tensor_map heads_map(const Heads<T>& h, int batch, int heads, int tokens, int head_dim, int rows) {
  const auto bytes = [](int64_t elements) { return static_cast<uint64_t>(elements) * sizeof(T); };
  return make_tensor_map(h.data,
                         {4,
                          {static_cast<uint64_t>(head_dim), static_cast<uint64_t>(tokens),
                           static_cast<uint64_t>(heads), static_cast<uint64_t>(batch)},
                          {bytes(h.token_stride), bytes(h.head_stride), bytes(h.batch_stride)},
                          {64, static_cast<uint32_t>(rows), 1, 1},
                          kSwizzle128});
}

template <class T, class Tile>
void run(const SdpaArgs& a, void* stream) {
  const Heads<const T> q(a.q), k(a.k), v(a.v);
  const Heads<T> out(a.out);
  SdpaArgs one_row_per_query = a;
  one_row_per_query.kv_heads = a.heads;
  const AttentionShape s(one_row_per_query);
  const BlockOrder order =
      BlockOrder::of(a.batch * a.heads, ceil_div(a.q_tokens, Tile::ROWS),
                     int64_t{4} * a.k_tokens * a.head_dim / (a.heads / a.kv_heads));
  launch(sdpa_sm90_kernel<T, Tile>,
         {"sdpa_sm90", order.grid(), Tile::THREADS, Tile::SMEM_BYTES, stream},
         {reads(q.data, q.extent(a.batch, a.heads, a.q_tokens, a.head_dim)),
          reads(k.data, k.extent(a.batch, a.kv_heads, a.k_tokens, a.head_dim)),
          reads(v.data, v.extent(a.batch, a.kv_heads, a.k_tokens, a.head_dim)),
          writes(out.data, out.extent(a.batch, a.heads, a.q_tokens, a.head_dim)),
          writes(a.lse, s.lse_size())},
         heads_map(q, a.batch, a.heads, a.q_tokens, a.head_dim, Tile::ROWS),
         heads_map(k, a.batch, a.kv_heads, a.k_tokens, a.head_dim, Tile::KEYS),
         heads_map(v, a.batch, a.kv_heads, a.k_tokens, a.head_dim, Tile::KEYS),
         heads_map(out, a.batch, a.heads, a.q_tokens, a.head_dim, 64), s, order,
         a.heads / a.kv_heads, a.lse);
}

bool has_tensor_map(const HeadsView& v) {  // 16-byte aligned, and no stride of 0
  return is_aligned16(v.data) && v.token_stride > 0 && v.head_stride > 0 && v.batch_stride > 0 &&
         v.token_stride % 8 == 0 && v.head_stride % 8 == 0 && v.batch_stride % 8 == 0;
}
}  // namespace

bool sdpa_sm90_serves(const SdpaArgs& a) {
  return (a.head_dim == 64 || a.head_dim == 128) && has_tensor_map(a.q) && has_tensor_map(a.k) &&
         has_tensor_map(a.v) && has_tensor_map(a.out);
}

void sdpa_sm90(const SdpaArgs& a, DType dtype, void* stream) {
  dispatch(dtype, [&](auto t) {
    if (a.head_dim == 64)
      run<decltype(t), HopperTile<64>>(a, stream);
    else
      run<decltype(t), HopperTile<128>>(a, stream);
  });
}
}  // namespace fusebench::cuda
