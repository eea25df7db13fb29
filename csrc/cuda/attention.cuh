// Attention on sm_80 and later: what the forward and the backward of sdpa share.
//
// The query heads of one KV head are rows of one matrix: row r is token r / group of head
// r % group, so that grouped heads read each key once, and causal rows stay in order.
#pragma once
#include "launch.cuh"
#include "ops.h"
#include "ptx.cuh"
#include "rows.cuh"
#include "tiles.cuh"

namespace fusebench::cuda {
constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

template <class T>
struct Heads {  // [batch, heads, tokens, head_dim], last dimension contiguous
  T* data;
  int64_t batch_stride, head_stride, token_stride;

  explicit Heads(const HeadsView& v)
      : data(static_cast<T*>(v.data)),
        batch_stride(v.batch_stride),
        head_stride(v.head_stride),
        token_stride(v.token_stride) {}
  DEV T* row(int batch, int head, int token) const {
    return data + batch * batch_stride + head * head_stride + token * token_stride;
  }
  bool aligned() const {
    return is_aligned16(data) && batch_stride % 8 == 0 && head_stride % 8 == 0 &&
           token_stride % 8 == 0;
  }
  // Elements from the first to the last one, for the simulator's bounds.
  int64_t extent(int batch, int heads, int tokens, int head_dim) const {
    return (batch - 1) * batch_stride + (heads - 1) * head_stride + (tokens - 1) * token_stride +
           head_dim;
  }
};

// Sizes and the row order; q_rows counts the packed rows of one KV head.
struct AttentionShape {
  int batch, heads, kv_heads, group, q_tokens, k_tokens, q_rows, head_dim;
  bool causal;
  float scale, scale_log2;  // of the scores, and of scores in units of log 2

  explicit AttentionShape(const SdpaArgs& p)
      : batch(p.batch),
        heads(p.heads),
        kv_heads(p.kv_heads),
        group(p.heads / p.kv_heads),
        q_tokens(p.q_tokens),
        k_tokens(p.k_tokens),
        q_rows(p.q_tokens * (p.heads / p.kv_heads)),
        head_dim(p.head_dim),
        causal(p.causal),
        scale(p.scale),
        scale_log2(p.scale * kLog2e) {}
  DEV int token(int row) const { return row / group; }
  DEV int head(int kv_head, int row) const { return kv_head * group + row % group; }
  // The last key that a row sees; the causal mask is aligned at the end.
  DEV int last_key(int row) const {
    return causal ? min_of(token(row) + k_tokens - q_tokens, k_tokens - 1) : k_tokens - 1;
  }
  // The first row that sees a key.
  DEV int first_row(int key) const {
    return causal ? max_of(0, key - (k_tokens - q_tokens)) * group : 0;
  }
  DEV int64_t lse_index(int batch_index, int kv_head, int row) const {
    return (static_cast<int64_t>(batch_index) * heads + head(kv_head, row)) * q_tokens + token(row);
  }
  int64_t lse_size() const { return int64_t{batch} * heads * q_tokens; }
};

// The order in which an attention launch starts its blocks: those of as many heads at once as keep
// what they stream in the L2, the longest of them first, then those of the next heads.
struct BlockOrder {
  int heads, blocks, heads_at_once;  // heads: of all batches; blocks: of one head

  static BlockOrder of(int heads, int blocks, int64_t streamed_bytes_per_head) {
    constexpr int64_t kShareOfL2 = 16 << 20;
    const int64_t fit = kShareOfL2 / max_of(streamed_bytes_per_head, int64_t{1});
    return {heads, blocks, static_cast<int>(max_of(int64_t{1}, min_of(fit, int64_t{heads})))};
  }
  dim3 grid(int splits = 1) const {
    return dim3(static_cast<unsigned>(heads * blocks), static_cast<unsigned>(splits));
  }
  struct Place {
    int head, block;
  };
  DEV Place of_block() const {
    const int index = static_cast<int>(blockIdx.x), per_group = heads_at_once * blocks;
    const int first_head = index / per_group * heads_at_once;
    const int group_heads = min_of(heads_at_once, heads - first_head);
    return {first_head + index % per_group % group_heads, index % per_group / group_heads};
  }
};

// Starts the copy of a tile; row_address(r) is where row r lies, or null for a row of zeros.
// Columns from head_dim to DP are zeros.
template <int ROWS, int DP, int THREADS, class T, class RowAddress>
DEV void load_tile(smem_t tile, int head_dim, bool aligned, const T* any, RowAddress row_address) {
  constexpr int kChunks = DP / 8;
  static_assert(ROWS * kChunks % THREADS == 0, "every thread copies the same number of chunks");
  NO_UNROLL  // addresses kept for every chunk would not fit beside the accumulators
      for (int i = 0; i < ROWS * kChunks / THREADS; i++) {
    const int index = static_cast<int>(threadIdx.x) + i * THREADS;
    const int row = index / kChunks, chunk = index % kChunks;
    const T* src = row_address(row);
    const int count = src ? max_of(0, min_of(8, head_dim - chunk * 8)) : 0;
    const smem_t dst = chunk_address<DP * 2>(tile, row, chunk);
    if (aligned) {
      cp_async16(dst, count ? src + chunk * 8 : any, count * 2);
    } else {
      float v[8];
      load8(count ? src + chunk * 8 : any, count, false, v);
      sts128(dst, pack8<T>(v));
    }
  }
}

// Accumulators of two neighbouring 8-column tiles are the A operand of the next multiply.
template <class T>
DEV void to_operand(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pack2<T>(left[0], left[1]), a[1] = pack2<T>(left[2], left[3]);
  a[2] = pack2<T>(right[0], right[1]), a[3] = pack2<T>(right[2], right[3]);
}

// acc[MI * 16 rows][N * 8] += A tile rows row0.. @ B tile^T, both with head_dim contiguous.
template <class T, int DP, int MI, int N>
DEV void multiply_transposed(float (&acc)[MI][N][4], smem_t a_tile, int a_row0, smem_t b_tile) {
  const smem_t a_lane = rows_lane<DP * 2>(a_tile), b_lane = columns_lane<DP * 2>(b_tile);
  UNROLL
  for (int kk = 0; kk < DP / 8; kk += 2) {
    uint32_t a[MI][4];
    UNROLL
    for (int i = 0; i < MI; i++) ldmatrix_x4(a[i], step_to<DP * 2>(a_lane, a_row0 + i * 16, kk));
    UNROLL
    for (int j = 0; j < N; j += 2) {
      uint32_t b[4];
      ldmatrix_x4(b, step_to<DP * 2>(b_lane, j * 8, kk));
      UNROLL
      for (int i = 0; i < MI; i++) {
        mma_m16n8k16<T>(acc[i][j], a[i], b[0], b[1]);
        mma_m16n8k16<T>(acc[i][j + 1], a[i], b[2], b[3]);
      }
    }
  }
}
// acc[MI * 16 rows][DP] += P[.., N * 8] @ B tile [N * 8, DP], P in registers.
template <class T, int DP, int MI, int N>
DEV void multiply_registers(float (&acc)[MI][DP / 8][4], const float (&p)[MI][N][4],
                            smem_t b_tile) {
  const smem_t b_lane = rows_lane<DP * 2>(b_tile);
  UNROLL
  for (int kk = 0; kk < N; kk += 2) {
    uint32_t a[MI][4];
    UNROLL
    for (int i = 0; i < MI; i++) to_operand<T>(a[i], p[i][kk], p[i][kk + 1]);
    UNROLL
    for (int j = 0; j < DP / 8; j += 2) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, step_to<DP * 2>(b_lane, kk * 8, j));
      UNROLL
      for (int i = 0; i < MI; i++) {
        mma_m16n8k16<T>(acc[i][j], a[i], b[0], b[1]);
        mma_m16n8k16<T>(acc[i][j + 1], a[i], b[2], b[3]);
      }
    }
  }
}

// Rounds a warp's MI * 16 x DP accumulators into its own rows of a tile in shared memory, then
// writes them to global memory 16 bytes at a time. The tile must no longer be read by others.
template <class T, int DP, int MI, class RowAddress>
DEV void store_rows(const float (&acc)[MI][DP / 8][4], smem_t tile, int row0, int head_dim,
                    bool aligned, RowAddress row_address) {
  const int lane = lane_id();
  sync_warp();
  UNROLL
  for (int i = 0; i < MI; i++) {
    UNROLL
    for (int j = 0; j < DP / 8; j++) {
      UNROLL
      for (int h = 0; h < 2; h++) {
        const int row = row0 + i * 16 + h * 8 + lane / 4;
        sts32(chunk_address<DP * 2>(tile, row, j) + static_cast<smem_t>(lane % 4 * 4),
              pack2<T>(acc[i][j][h * 2], acc[i][j][h * 2 + 1]));
      }
    }
  }
  sync_warp();
  constexpr int kChunks = DP / 8;
  UNROLL
  for (int index = lane; index < MI * 16 * kChunks; index += 32) {
    const int row = row0 + index / kChunks, chunk = index % kChunks;
    T* dst = row_address(row);
    const int count = min_of(8, head_dim - chunk * 8);
    if (!dst || count <= 0) continue;
    const uint4 u = lds128(chunk_address<DP * 2>(tile, row, chunk));
    if (aligned && count == 8) {
      stg(reinterpret_cast<uint4*>(dst + chunk * 8), u);
    } else {
      const uint32_t words[4] = {u.x, u.y, u.z, u.w};
      UNROLL
      for (int e = 0; e < 8; e++) {
        const float2 pair = unpack2<T>(words[e / 2]);
        if (e < count) stg(dst + chunk * 8 + e, from_float<T>(e % 2 ? pair.y : pair.x));
      }
    }
  }
}

// Sums over the 4 lanes that hold one row.
DEV float quad_sum(float v) {
  v += shfl_xor(v, 1);
  return v + shfl_xor(v, 2);
}
DEV float quad_max(float v) {
  v = fmaxf(v, shfl_xor(v, 1));
  return fmaxf(v, shfl_xor(v, 2));
}

// Accumulators of 8-column tiles in one row of registers: column 8 j + lane % 4 * 2 + e of row
// lane / 4 + 8 h is value 4 j + 2 h + e.
template <int N>
DEV float (&flat(float (&v)[N][4])) [N * 4] { return reinterpret_cast<float (&)[N * 4]>(v); }

// The online softmax of one of the two rows a lane holds a part of: h is 0 or 1.
struct OnlineSoftmax {
  float top = -INFINITY;  // greatest score so far
  float sum = 0.f;        // this lane's part of the sum of exp(score - top)

  // Turns scores into probabilities relative to the new greatest score. Returns the factor for
  // what was summed before.
  template <int N>
  DEV float step(float (&scores)[N], int h, float scale_log2) {
    float greatest = top;
    UNROLL
    for (int i = h * 2; i < N; i += 4) greatest = fmaxf(greatest, fmaxf(scores[i], scores[i + 1]));
    greatest = quad_max(greatest);
    // A row that has seen no key yet keeps a finite base, so that exp2 gives 0 and not NaN.
    const float base = greatest == -INFINITY ? 0.f : greatest * scale_log2;
    const float rescale = ex2(top * scale_log2 - base);
    top = greatest;
    float part = 0.f;
    UNROLL
    for (int i = h * 2; i < N; i += 4) {
      UNROLL
      for (int e = 0; e < 2; e++) {
        scores[i + e] = ex2(fmaf(scores[i + e], scale_log2, -base));
        part += scores[i + e];
      }
    }
    sum = sum * rescale + part;
    return rescale;
  }
  // The sum over all lanes of the row.
  DEV float total() const { return quad_sum(sum); }
  // Natural logarithm of the sum of exp(score), -inf for a row that has seen no key.
  DEV float lse(float total, float scale) const { return top * scale + kLn2 * lg2(total); }
};
// Hides the keys of a tile behind `visible`, which counts from the tile's first key.
template <int N>
DEV void hide_keys(float (&scores)[N], int h, int visible) {
  const int mine = visible - lane_id() % 4 * 2;
  UNROLL
  for (int i = h * 2; i < N; i += 4) {
    UNROLL
    for (int e = 0; e < 2; e++)
      if (i / 4 * 8 + e > mine) scores[i + e] = -INFINITY;
  }
}
template <int N>
DEV void multiply_row(float (&values)[N], int h, float factor) {
  UNROLL
  for (int i = h * 2; i < N; i += 4) values[i] *= factor, values[i + 1] *= factor;
}

// Calls f with the padded head dimension as a constant: 64, 96 or 128.
template <class F>
void dispatch_head_dim(int head_dim, F f) {
  if (head_dim <= 64)
    f(std::integral_constant<int, 64>());
  else if (head_dim <= 96)
    f(std::integral_constant<int, 96>());
  else
    f(std::integral_constant<int, 128>());
}
}  // namespace fusebench::cuda
