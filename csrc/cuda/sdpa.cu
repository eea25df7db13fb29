// sdpa forward, FlashAttention-2 style: online softmax over tiles of keys, no T x T buffer.
// Few queries (a decode step) split the keys over blocks and combine the partial results.
#include "attention.cuh"
#include "sdpa_sm90.h"

namespace fusebench::cuda {
namespace {
template <int DP_, int KEYS_, int WARPS_, int MI_>
struct ForwardTile {
  static constexpr int DP = DP_, KEYS = KEYS_, WARPS = WARPS_, MI = MI_;
  static constexpr int ROWS = WARPS * MI * 16, THREADS = 32 * WARPS;
  static constexpr int Q_BYTES = ROWS * DP * 2, KV_BYTES = KEYS * DP * 2;
  static constexpr int SMEM_BYTES = Q_BYTES + 2 * KV_BYTES;
};
// 32 rows per warp halve the traffic of keys and values; wide heads then leave registers for the
// scores of 32 keys.
template <int DP>
using PrefillTile = ForwardTile<DP, DP == 64 ? 64 : 32, 4, 2>;
constexpr int kDecodeKeys = 64;
template <int DP>
using DecodeTile = ForwardTile<DP, kDecodeKeys, 1, 1>;
constexpr int kDecodeRows = 32;  // up to here the small tile and the splits serve better
bool few_rows(const SdpaArgs& a) { return a.q_tokens * (a.heads / a.kv_heads) <= kDecodeRows; }

template <class T>
struct Forward {
  AttentionShape shape;
  Heads<const T> q, k, v;
  Heads<T> out;
  float* lse;
  bool aligned_in, aligned_out;
  int splits, partial_stride;  // floats from one row of partial_out to the next
  float *partial_out, *partial_lse;
};

template <class T, class Tile>
KERNEL(Tile::THREADS, 1)
sdpa_kernel(Forward<T> p, BlockOrder order) {
  constexpr int DP = Tile::DP, MI = Tile::MI, KEYS = Tile::KEYS, NT = KEYS / 8;
  const AttentionShape& shape = p.shape;
  const BlockOrder::Place place = order.of_block();
  const int batch = place.head / shape.kv_heads, kv_head = place.head % shape.kv_heads;
  // The last rows see the most keys under a causal mask: they start first.
  const int row0 = (order.blocks - 1 - place.block) * Tile::ROWS;
  const int last_row = min_of(row0 + Tile::ROWS, shape.q_rows) - 1;

  const int tiles = ceil_div(shape.last_key(last_row) + 1, KEYS);
  const int per_split = ceil_div(ceil_div(shape.k_tokens, KEYS), p.splits);
  const int first_tile = static_cast<int>(blockIdx.y) * per_split;
  const int end_tile = min_of(tiles, first_tile + per_split);
  // Tiles before this one are seen whole by every row of the block.
  const int first_masked = (shape.last_key(row0) + 1) / KEYS;

  const smem_t q_tile = smem_base(), k_tile = q_tile + Tile::Q_BYTES,
               v_tile = k_tile + Tile::KV_BYTES;
  const auto load_keys = [&](smem_t tile, const Heads<const T>& source, int index) {
    load_tile<KEYS, DP, Tile::THREADS>(
        tile, shape.head_dim, p.aligned_in, source.data, [&](int r) -> const T* {
          const int key = index * KEYS + r;
          return key < shape.k_tokens ? source.row(batch, kv_head, key) : nullptr;
        });
    cp_async_commit();
  };
  if (first_tile < end_tile) {
    load_tile<Tile::ROWS, DP, Tile::THREADS>(
        q_tile, shape.head_dim, p.aligned_in, p.q.data, [&](int r) -> const T* {
          const int row = row0 + r;
          return row < shape.q_rows ? p.q.row(batch, shape.head(kv_head, row), shape.token(row))
                                    : nullptr;
        });
    load_keys(k_tile, p.k, end_tile - 1);
  }

  const int lane = lane_id(), warp_row = warp_id() * (MI * 16);
  const auto row_of = [&](int i, int h) { return row0 + warp_row + i * 16 + h * 8 + lane / 4; };
  float acc[MI][DP / 8][4] = {};
  OnlineSoftmax softmax[MI][2];

  NO_UNROLL
  for (int tile = end_tile - 1; tile >= first_tile; tile--) {
    cp_async_wait<0>();
    sync_block();  // the keys are there, and the last values are no longer read
    load_keys(v_tile, p.v, tile);
    float s[MI][NT][4] = {};
    multiply_transposed<T, DP, MI, NT>(s, q_tile, warp_row, k_tile);
    cp_async_wait<0>();
    sync_block();  // the values are there, and the keys are no longer read
    if (tile > first_tile) load_keys(k_tile, p.k, tile - 1);

    if (tile >= first_masked) {
      UNROLL
      for (int i = 0; i < MI; i++) {
        UNROLL
        for (int h = 0; h < 2; h++)
          hide_keys(flat(s[i]), h, shape.last_key(row_of(i, h)) - tile * KEYS);
      }
    }
    UNROLL
    for (int i = 0; i < MI; i++) {
      UNROLL
      for (int h = 0; h < 2; h++)
        multiply_row(flat(acc[i]), h, softmax[i][h].step(flat(s[i]), h, shape.scale_log2));
    }
    multiply_registers<T, DP, MI, NT>(acc, s, v_tile);
  }

  const int64_t partial_row0 =
      (static_cast<int64_t>(blockIdx.y) * order.heads + place.head) * shape.q_rows;
  UNROLL
  for (int i = 0; i < MI; i++) {
    UNROLL
    for (int h = 0; h < 2; h++) {
      const int row = row_of(i, h);
      const float sum = softmax[i][h].total(), lse = softmax[i][h].lse(sum, shape.scale);
      multiply_row(flat(acc[i]), h, sum > 0.f ? 1.f / sum : 0.f);
      if (row >= shape.q_rows) continue;
      if (p.splits > 1) {
        if (lane % 4 == 0) stg(p.partial_lse + partial_row0 + row, lse);
        float* dst = p.partial_out + (partial_row0 + row) * p.partial_stride + lane % 4 * 2;
        UNROLL
        for (int j = 0; j < DP / 8; j++)
          if (j * 8 < p.partial_stride)
            stg(reinterpret_cast<float2*>(dst + j * 8),
                make_float2(acc[i][j][h * 2], acc[i][j][h * 2 + 1]));
      } else if (p.lse && lane % 4 == 0) {
        stg(p.lse + shape.lse_index(batch, kv_head, row), lse);
      }
    }
  }
  if (p.splits > 1) return;
  store_rows<T, DP, MI>(acc, q_tile, warp_row, shape.head_dim, p.aligned_out, [&](int r) -> T* {
    const int row = row0 + r;
    return row < shape.q_rows ? p.out.row(batch, shape.head(kv_head, row), shape.token(row))
                              : nullptr;
  });
}

// One warp per row: the softmax over splits of their partial results.
constexpr int kCombineRows = 4;
template <class T>
KERNEL(32 * kCombineRows, 1)
sdpa_combine_kernel(Forward<T> p) {
  const AttentionShape& shape = p.shape;
  const int64_t rows = int64_t{shape.batch} * shape.kv_heads * shape.q_rows;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kCombineRows + warp_id();
  if (index >= rows) return;
  const int row = static_cast<int>(index % shape.q_rows);
  const int kv_head = static_cast<int>(index / shape.q_rows % shape.kv_heads);
  const int batch = static_cast<int>(index / shape.q_rows / shape.kv_heads);
  const int lane = lane_id();

  float top = -INFINITY;
  for (int s = 0; s < p.splits; s++) top = fmaxf(top, ldg(p.partial_lse + s * rows + index));
  float total = 0.f, acc[4] = {};
  for (int s = 0; s < p.splits; s++) {
    const float weight = ex2((ldg(p.partial_lse + s * rows + index) - top) * kLog2e);
    total += weight;
    const float* src = p.partial_out + (s * rows + index) * p.partial_stride;
    UNROLL
    for (int i = 0; i < 4; i++)
      if (lane + i * 32 < shape.head_dim) acc[i] += weight * ldg(src + lane + i * 32);
  }
  T* dst = p.out.row(batch, shape.head(kv_head, row), shape.token(row));
  UNROLL
  for (int i = 0; i < 4; i++)
    if (lane + i * 32 < shape.head_dim) stg(dst + lane + i * 32, from_float<T>(acc[i] / total));
  if (p.lse && lane == 0)
    stg(p.lse + shape.lse_index(batch, kv_head, row), top + kLn2 * lg2(total));
}

template <class T, class Tile>
void run(const Forward<T>& p, void* stream) {
  const AttentionShape& s = p.shape;
  const int64_t partial_rows = int64_t{p.splits} * s.batch * s.kv_heads * s.q_rows;
  const BlockOrder order = BlockOrder::of(s.batch * s.kv_heads, ceil_div(s.q_rows, Tile::ROWS),
                                          int64_t{4} * s.k_tokens * s.head_dim);
  const Buffer q = reads(p.q.data, p.q.extent(s.batch, s.heads, s.q_tokens, s.head_dim)),
               k = reads(p.k.data, p.k.extent(s.batch, s.kv_heads, s.k_tokens, s.head_dim)),
               v = reads(p.v.data, p.v.extent(s.batch, s.kv_heads, s.k_tokens, s.head_dim)),
               out = writes(p.out.data, p.out.extent(s.batch, s.heads, s.q_tokens, s.head_dim)),
               lse = writes(p.lse, s.lse_size());
  const LaunchConfig config{"sdpa", order.grid(p.splits), Tile::THREADS, Tile::SMEM_BYTES, stream};
  if (p.splits == 1) return launch(sdpa_kernel<T, Tile>, config, {q, k, v, out, lse}, p, order);
  const int64_t partial_size = partial_rows * p.partial_stride;
  launch(sdpa_kernel<T, Tile>, config,
         {q, k, v, writes(p.partial_out, partial_size), writes(p.partial_lse, partial_rows)}, p,
         order);
  const dim3 combine_grid(
      static_cast<unsigned>(ceil_div(partial_rows / p.splits, int64_t{kCombineRows})));
  launch(sdpa_combine_kernel<T>, {"sdpa_combine", combine_grid, 32 * kCombineRows, 0, stream},
         {reads(p.partial_out, partial_size), reads(p.partial_lse, partial_rows), out, lse}, p);
}

template <class T>
void run_sm80(const SdpaArgs& a, void* stream) {
  Forward<T> p{AttentionShape(a),
               Heads<const T>(a.q),
               Heads<const T>(a.k),
               Heads<const T>(a.v),
               Heads<T>(a.out),
               a.lse,
               false,
               false,
               a.splits,
               sdpa_partial_stride(a.head_dim),
               a.partial_out,
               a.partial_lse};
  p.aligned_in = p.q.aligned() && p.k.aligned() && p.v.aligned();
  p.aligned_out = p.out.aligned();
  dispatch_head_dim(a.head_dim, [&](auto dp) {
    if (few_rows(a))
      run<T, DecodeTile<dp.value>>(p, stream);
    else
      run<T, PrefillTile<dp.value>>(p, stream);
  });
}
}  // namespace

int sdpa_splits(int batch, int heads, int kv_heads, int q_tokens, int k_tokens) {
  const int rows = q_tokens * (heads / kv_heads);
  if (rows > kDecodeRows) return 1;
  constexpr int kBlocksPerSm = 4, kLeastTiles = 4;  // shorter slices cost more than they bring
  const int blocks = batch * kv_heads * ceil_div(rows, DecodeTile<64>::ROWS);
  const int wanted = ceil_div(kBlocksPerSm * multiprocessors(), blocks);
  const int tiles = ceil_div(k_tokens, kDecodeKeys);
  const int per_split = max_of(kLeastTiles, ceil_div(tiles, wanted));
  return max_of(1, ceil_div(tiles, per_split));
}

int sdpa_partial_stride(int head_dim) { return ceil_div(head_dim, 8) * 8; }

void sdpa(const SdpaArgs& p, DType dtype, void* stream) {
  if (has_sm90a() && !few_rows(p) && sdpa_sm90_serves(p)) return sdpa_sm90(p, dtype, stream);
  dispatch(dtype, [&](auto t) { run_sm80<decltype(t)>(p, stream); });
}
}  // namespace fusebench::cuda
