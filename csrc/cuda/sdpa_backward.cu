// sdpa backward, FlashAttention-2 style: scores are computed again from the saved lse, nothing is
// added atomically, so gradients are the same in every run. Three kernels:
//   delta    sum(out * grad_out) of every row
//   grad_kv  a block keeps 64 keys and streams the rows that see them
//   grad_q   a block keeps 64 rows and streams the keys they see
// The last two are one kernel that keeps one side of the scores and streams the other.
#include "attention.cuh"

namespace fusebench::cuda {
namespace {
template <class T>
struct Backward {
  AttentionShape shape;
  Heads<const T> q, k, v, out, grad_out;
  Heads<T> grad_q, grad_k, grad_v;
  const float* lse;
  float* delta;
  bool aligned_in, aligned_out;
};

constexpr int kDeltaRows = 4;  // rows per block, one warp each
template <class T>
KERNEL(32 * kDeltaRows, 1)
sdpa_delta_kernel(Backward<T> p) {
  const AttentionShape& shape = p.shape;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kDeltaRows + warp_id();
  if (index >= static_cast<int64_t>(shape.batch) * shape.heads * shape.q_tokens) return;
  const int token = static_cast<int>(index % shape.q_tokens);
  const int head = static_cast<int>(index / shape.q_tokens % shape.heads);
  const int batch = static_cast<int>(index / shape.q_tokens / shape.heads);
  const T *out = p.out.row(batch, head, token), *grad = p.grad_out.row(batch, head, token);
  const bool aligned = p.aligned_in && shape.head_dim % 8 == 0;
  float sum = 0.f;
  for (int c = lane_id() * 8; c < shape.head_dim; c += 256) {
    float a[8], b[8];
    load8(out + c, shape.head_dim - c, aligned, a);
    load8(grad + c, shape.head_dim - c, aligned, b);
    UNROLL
    for (int e = 0; e < 8; e++) sum += a[e] * b[e];
  }
  sum = warp_sum(sum);
  if (lane_id() == 0) stg(p.delta + index, sum);
}

template <int DP_, bool KEEP_KEYS_>
struct BackwardTile {
  static constexpr int DP = DP_, WARPS = 4, THREADS = 32 * WARPS;
  static constexpr bool KEEP_KEYS = KEEP_KEYS_;
  static constexpr int KEPT = 16 * WARPS, STREAMED = DP == 64 ? 64 : 32;
  static constexpr int KEPT_BYTES = KEPT * DP * 2, STREAMED_BYTES = STREAMED * DP * 2;
  // Two kept tiles, two stages of two streamed tiles, two stages of lse and delta.
  static constexpr int STAGE_BYTES = 2 * STREAMED_BYTES, STATS_BYTES = STREAMED * 8;
  static constexpr int SMEM_BYTES = 2 * KEPT_BYTES + 2 * STAGE_BYTES + 2 * STATS_BYTES;
};

// With x, y the kept tiles and u, w the streamed ones (k, v and q, grad_out, or the reverse):
// scores = x u^T, grad_p = y w^T, grad_s = p (grad_p - delta), first += grad_s u, second += p w.
template <class T, class Tile>
KERNEL(Tile::THREADS, 1)
sdpa_backward_kernel(Backward<T> p, BlockOrder order) {
  constexpr int DP = Tile::DP, NT = Tile::STREAMED / 8;
  const AttentionShape& shape = p.shape;
  const BlockOrder::Place place = order.of_block();
  const int batch = place.head / shape.kv_heads, kv_head = place.head % shape.kv_heads;
  const auto row_address = [&](const auto& source, int row) {
    return row < shape.q_rows ? source.row(batch, shape.head(kv_head, row), shape.token(row))
                              : nullptr;
  };
  const auto key_address = [&](const auto& source, int key) {
    return key < shape.k_tokens ? source.row(batch, kv_head, key) : nullptr;
  };

  // Under a causal mask the first keys and the last rows have the most work: they start first.
  const int kept_block = Tile::KEEP_KEYS ? place.block : order.blocks - 1 - place.block;
  const int kept0 = kept_block * Tile::KEPT;
  int first = 0, end = shape.q_rows;
  if constexpr (Tile::KEEP_KEYS)
    first = shape.first_row(kept0) / Tile::STREAMED;
  else
    end = shape.last_key(min_of(kept0 + Tile::KEPT, shape.q_rows) - 1) + 1;
  end = ceil_div(end, Tile::STREAMED);

  const smem_t x_tile = smem_base(), y_tile = x_tile + Tile::KEPT_BYTES;
  const smem_t stages = y_tile + Tile::KEPT_BYTES, stats = stages + 2 * Tile::STAGE_BYTES;
  const auto u_tile = [&](int step) {
    return stages + static_cast<smem_t>((step & 1) * Tile::STAGE_BYTES);
  };
  const auto stats_of = [&](int step) {
    return stats + static_cast<smem_t>((step & 1) * Tile::STATS_BYTES);
  };

  const auto load_side = [&](auto keys, smem_t x, smem_t y, int at) {
    constexpr int kRows = decltype(keys)::value == Tile::KEEP_KEYS ? Tile::KEPT : Tile::STREAMED;
    const auto load = [&](smem_t tile, const Heads<const T>& source) {
      load_tile<kRows, DP, Tile::THREADS>(
          tile, shape.head_dim, p.aligned_in, source.data, [&](int r) -> const T* {
            return decltype(keys)::value ? key_address(source, at + r)
                                         : row_address(source, at + r);
          });
    };
    load(x, decltype(keys)::value ? p.k : p.q);
    load(y, decltype(keys)::value ? p.v : p.grad_out);
  };
  using Keys = std::integral_constant<bool, true>;
  using Rows = std::integral_constant<bool, false>;
  using KeptSide = std::conditional_t<Tile::KEEP_KEYS, Keys, Rows>;
  using StreamedSide = std::conditional_t<Tile::KEEP_KEYS, Rows, Keys>;
  const auto load_streamed = [&](int step) {
    load_side(StreamedSide(), u_tile(step), u_tile(step) + Tile::STREAMED_BYTES,
              step * Tile::STREAMED);
    cp_async_commit();
  };
  // {lse in units of log 2, delta} of a row; a row that does not exist gets p = 0.
  const auto row_stats = [&](int row) {
    if (row >= shape.q_rows) return make_float2(INFINITY, 0.f);
    const int64_t at = shape.lse_index(batch, kv_head, row);
    return make_float2(ldg(p.lse + at) * kLog2e, ldg(p.delta + at));
  };

  const int lane = lane_id(), thread = static_cast<int>(threadIdx.x), warp_row = warp_id() * 16;
  load_side(KeptSide(), x_tile, y_tile, kept0);
  float2 kept_stats[2], next_stats = make_float2(0.f, 0.f);
  if constexpr (Tile::KEEP_KEYS) {
    if (first < end && thread < Tile::STREAMED) {
      const float2 s = row_stats(first * Tile::STREAMED + thread);
      stsf(stats_of(first) + thread * 8, s.x), stsf(stats_of(first) + thread * 8 + 4, s.y);
    }
  } else {
    kept_stats[0] = row_stats(kept0 + warp_row + lane / 4);
    kept_stats[1] = row_stats(kept0 + warp_row + lane / 4 + 8);
  }
  if (first < end) load_streamed(first);

  float grad_first[1][DP / 8][4] = {}, grad_second[1][DP / 8][4] = {};
  NO_UNROLL
  for (int step = first; step < end; step++) {
    cp_async_wait<0>();
    sync_block();  // this step's tiles are there, and those of the step before are free
    const bool more = step + 1 < end;
    if (more) load_streamed(step + 1);
    if (Tile::KEEP_KEYS && more && thread < Tile::STREAMED)
      next_stats = row_stats((step + 1) * Tile::STREAMED + thread);

    const int streamed0 = step * Tile::STREAMED;
    const smem_t u = u_tile(step), w = u + Tile::STREAMED_BYTES;
    float probability[1][NT][4] = {}, grad_s[1][NT][4] = {};
    multiply_transposed<T, DP, 1, NT>(probability, x_tile, warp_row, u);
    multiply_transposed<T, DP, 1, NT>(grad_s, y_tile, warp_row, w);
    const int first_row = Tile::KEEP_KEYS ? streamed0 : kept0;
    const int end_key = Tile::KEEP_KEYS ? kept0 + Tile::KEPT : streamed0 + Tile::STREAMED;
    const bool masked = shape.last_key(first_row) < end_key - 1;
    UNROLL
    for (int j = 0; j < NT; j++) {
      UNROLL
      for (int e = 0; e < 2; e++) {
        const int column = j * 8 + lane % 4 * 2 + e;
        float2 column_stats = make_float2(0.f, 0.f);
        if constexpr (Tile::KEEP_KEYS)
          column_stats =
              make_float2(ldsf(stats_of(step) + column * 8), ldsf(stats_of(step) + column * 8 + 4));
        UNROLL
        for (int h = 0; h < 2; h++) {
          const int kept = kept0 + warp_row + h * 8 + lane / 4;
          const float2 s = Tile::KEEP_KEYS ? column_stats : kept_stats[h];
          float& value = probability[0][j][h * 2 + e];
          value = ex2(fmaf(value, shape.scale_log2, -s.x));
          if (masked) {
            const int row = Tile::KEEP_KEYS ? streamed0 + column : kept;
            const int key = Tile::KEEP_KEYS ? kept : streamed0 + column;
            if (key > shape.last_key(row)) value = 0.f;
          }
          grad_s[0][j][h * 2 + e] = value * (grad_s[0][j][h * 2 + e] - s.y);
        }
      }
    }
    multiply_registers<T, DP, 1, NT>(grad_first, grad_s, u);
    if constexpr (Tile::KEEP_KEYS) {
      multiply_registers<T, DP, 1, NT>(grad_second, probability, w);
      if (more && thread < Tile::STREAMED) {
        stsf(stats_of(step + 1) + thread * 8, next_stats.x);
        stsf(stats_of(step + 1) + thread * 8 + 4, next_stats.y);
      }
    }
  }

  // A warp's rows of the kept tiles, which no other has read, become its staging room.
  UNROLL
  for (int j = 0; j < DP / 8; j++) {
    UNROLL
    for (int e = 0; e < 4; e++) grad_first[0][j][e] *= shape.scale;
  }
  if constexpr (Tile::KEEP_KEYS) {
    store_rows<T, DP, 1>(grad_first, x_tile, warp_row, shape.head_dim, p.aligned_out,
                         [&](int r) -> T* { return key_address(p.grad_k, kept0 + r); });
    store_rows<T, DP, 1>(grad_second, y_tile, warp_row, shape.head_dim, p.aligned_out,
                         [&](int r) -> T* { return key_address(p.grad_v, kept0 + r); });
  } else {
    store_rows<T, DP, 1>(grad_first, x_tile, warp_row, shape.head_dim, p.aligned_out,
                         [&](int r) -> T* { return row_address(p.grad_q, kept0 + r); });
  }
}

template <class T>
void run(const SdpaBackwardArgs& a, void* stream) {
  const SdpaArgs& f = a.forward;
  Backward<T> p{AttentionShape(f),
                Heads<const T>(f.q),
                Heads<const T>(f.k),
                Heads<const T>(f.v),
                Heads<const T>(f.out),
                Heads<const T>(a.grad_out),
                Heads<T>(a.grad_q),
                Heads<T>(a.grad_k),
                Heads<T>(a.grad_v),
                f.lse,
                a.delta,
                false,
                false};
  const AttentionShape& s = p.shape;
  p.aligned_in =
      p.q.aligned() && p.k.aligned() && p.v.aligned() && p.out.aligned() && p.grad_out.aligned();
  p.aligned_out = p.grad_q.aligned() && p.grad_k.aligned() && p.grad_v.aligned();
  const auto rows = [&](const auto& h) {
    return h.extent(s.batch, s.heads, s.q_tokens, s.head_dim);
  };
  const auto keys = [&](const auto& h) {
    return h.extent(s.batch, s.kv_heads, s.k_tokens, s.head_dim);
  };
  const Buffer q = reads(p.q.data, rows(p.q)), k = reads(p.k.data, keys(p.k)),
               v = reads(p.v.data, keys(p.v)), grad = reads(p.grad_out.data, rows(p.grad_out)),
               lse = reads(p.lse, s.lse_size()), delta = reads(p.delta, s.lse_size());
  launch(sdpa_delta_kernel<T>,
         {"sdpa_delta", dim3(static_cast<unsigned>(ceil_div(s.lse_size(), int64_t{kDeltaRows}))),
          32 * kDeltaRows, 0, stream},
         {reads(p.out.data, rows(p.out)), grad, writes(p.delta, s.lse_size())}, p);
  dispatch_head_dim(s.head_dim, [&](auto dp) {
    const auto start = [&](const char* name, auto tile, int kept, int streamed, Buffer first,
                           Buffer second) {
      using Tile = decltype(tile);
      const auto order = BlockOrder::of(s.batch * s.kv_heads, ceil_div(kept, Tile::KEPT),
                                        int64_t{4} * streamed * s.head_dim);
      launch(sdpa_backward_kernel<T, Tile>,
             {name, order.grid(), Tile::THREADS, Tile::SMEM_BYTES, stream},
             {q, k, v, grad, lse, delta, first, second}, p, order);
    };
    start("sdpa_grad_kv", BackwardTile<dp.value, true>(), s.k_tokens, s.q_rows,
          writes(p.grad_k.data, keys(p.grad_k)), writes(p.grad_v.data, keys(p.grad_v)));
    start("sdpa_grad_q", BackwardTile<dp.value, false>(), s.q_rows, s.k_tokens,
          writes(p.grad_q.data, rows(p.grad_q)), {});
  });
}
}  // namespace

void sdpa_backward(const SdpaBackwardArgs& p, DType dtype, void* stream) {
  dispatch(dtype, [&](auto t) { run<decltype(t)>(p, stream); });
}
}  // namespace fusebench::cuda
