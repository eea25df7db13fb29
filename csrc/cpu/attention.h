// Flash-style attention: the core of sdpa. No buffer of q_len x kv_len; softmax in float32 with
// running maxima and sums over chunks of keys, both products on the GEMM's register tile.
//
// Everything is transposed: scores are [key][query] = K q^T and the output is [head_dim][query] =
// V^T scores. So the softmax runs down the vectors, with no sum across one, and what it leaves is
// the right-hand panel of the second product as it is.
#pragma once
#include "gemm.h"

namespace fusebench {
namespace FUSEBENCH_ISA {

// K and V of one KV head as left operands. K's rows are keys: in panels of kMR, or with AMX as
// rows. V's rows are its columns: in [head_dim / kNR] panels of keys for tile_columns(), or with
// AMX transposed, as rows.
template <class T>
struct PackedHead {
  using P = Operand<T>;
  P* k;
  P* v;
  int64_t head_dim, keys;
  // Keys of a packing task: whole panels, and whole steps of the second product.
  static constexpr int64_t kPackKeys = kAmx<P>          ? 256
                                       : sizeof(P) == 2 ? 32 * kTileRows
                                                        : 256 / kTileRows * kTileRows;

  static int64_t padded_dim(int64_t d) { return round_up<int64_t>(d, kKPad<P>); }
  static int64_t padded_keys(int64_t n) { return round_up<int64_t>(n, kKPad<P>); }
  static int64_t k_size(int64_t d, int64_t n) {
    return kLeftPanels<P> ? ceil_div<int64_t>(n, kTileRows) * kLeftRows * padded_dim(d)
                          : round_up<int64_t>(n, kMR<P>) * padded_lda(d);
  }
  static int64_t v_size(int64_t d, int64_t n) {
    return round_up<int64_t>(d, kNR) * (kLeftPanels<P> ? padded_keys(n) : padded_lda(n));
  }

  // out = m keys from j on times the panel of queries; m a multiple of kMR, or to the end.
  void scores(int64_t j, int m, const TileArgs<P>& args) const {
    if constexpr (kLeftPanels<P>) {
      tile(m, k + j / kTileRows * kLeftRows * padded_dim(head_dim), args);
    } else {
      tile_rows(kMR<P>, k + j * padded_lda(head_dim), padded_lda(head_dim), args);
    }
  }
  // out = m columns of V from c on, over the keys from j on, times the panel of scores.
  void weigh(int64_t c, int m, int64_t j, const TileArgs<P>& args) const {
    if constexpr (kLeftPanels<P>) {
      tile_columns(m, v + c / kNR * kNR * padded_keys(keys) + j * kNR + c % kNR * kPair<P>, args);
    } else {
      tile_rows(kMR<P>, v + c * padded_lda(keys) + j, padded_lda(keys), args);
    }
  }

  // Keys [j0, j1), j0 a multiple of kPackKeys; j1 too, or the end.
  void pack(const T* ks, int64_t k_stride, const T* vs, int64_t v_stride, int64_t j0,
            int64_t j1) const {
    if constexpr (kLeftPanels<P>) {
      pack_panels(ks, k_stride, j0, j1);
      for (int64_t c = 0; c < head_dim; c += kNR) {
        pack_rows(vs + j0 * v_stride + c, v_stride, int(min_of<int64_t>(kNR, head_dim - c)),
                  j1 - j0, padded_keys(j1 - j0), v + c * padded_keys(keys) + j0 * kNR);
      }
    } else {
      const Prologue copy{Norm::none, nullptr, nullptr, 0.f};
      for (int64_t j = j0; j < j1; j++)
        prepare_row(ks + j * k_stride, head_dim, copy, k + j * padded_lda(head_dim));
      transpose_values(vs, v_stride, j0, j1);
    }
  }

 private:
  void pack_panels(const T* ks, int64_t k_stride, int64_t j0, int64_t j1) const {
    for (int64_t j = j0; j < j1; j += kTileRows) {
      P* panel = k + j / kTileRows * kLeftRows * padded_dim(head_dim);
      const int rows = int(min_of<int64_t>(kTileRows, j1 - j));
      for (int64_t i = 0; i < padded_dim(head_dim); i += kW) {
        Vec columns[kLeftRows] = {};
        const int n = int(max_of<int64_t>(0, min_of<int64_t>(kW, head_dim - i)));
        for (int r = 0; n > 0 && r < rows; r++)
          columns[r] = load_lanes(ks + (j + r) * k_stride, i, head_dim);
        store_columns(panel, i, n, columns);
      }
    }
  }

  // Pairs of keys are 32-bit units: interleaved first, then transposed.
  void transpose_values(const T* vs, int64_t v_stride, int64_t j0, int64_t j1) const {
    alignas(64) P pairs[32 * kNR];
    for (int64_t j = j0; j < j1; j += 32) {
      for (int64_t c = 0; c < head_dim; c += kNR) {
        pack_rows(vs + j * v_stride + c, v_stride, int(min_of<int64_t>(kNR, head_dim - c)),
                  min_of<int64_t>(32, j1 - j), 32, pairs);
        for (int half = 0; half < kNR; half += kW) {
          Vec square[kW];
          for (int i = 0; i < kW; i++)
            square[i] = load(reinterpret_cast<const float*>(pairs) + i * kNR + half);
          transpose(square);
          for (int i = 0; i < kW; i++)
            store(reinterpret_cast<float*>(v + (c + half + i) * padded_lda(keys) + j), square[i]);
        }
      }
    }
  }
};

// Per query: the highest score so far and the sum of 2^(score - highest).
struct RunningSoftmax {
  Vec top[kNV], total[kNV];

  RunningSoftmax() {
    for (int v = 0; v < kNV; v++) {
      top[v] = set1(-__builtin_inff());
      total[v] = Vec{};
    }
  }

  // probs = 2^(scores * scale - highest), from scores [n][kNR]; query r sees the keys before
  // limit + r. factor: what earlier sums have to be multiplied by; false if that is 1 for all.
  template <class T, class P>
  bool update(float* scores, int64_t n, int64_t limit, float scale, P* probs, Vec (&factor)[kNV]) {
    for (int64_t j = max_of<int64_t>(0, limit); j < n; j++) {
      const int blind = int(j - limit) + 1;  // the first queries do not see it
      for (int v = 0; v < kNV; v++) {
        float* row = scores + j * kNR + v * kW;
        store(row, last_lanes(load(row), blind - v * kW, -__builtin_inff()));
      }
    }
    Vec highest[kNV];
    for (int v = 0; v < kNV; v++) highest[v] = load(scores + v * kW);
    for (int64_t j = 1; j < n; j++) {
      for (int v = 0; v < kNV; v++)
        highest[v] = max_of(highest[v], load(scores + j * kNR + v * kW));
    }
    VecI changed = {};
    for (int v = 0; v < kNV; v++) {
      highest[v] = max_of(top[v], highest[v] * scale);
      factor[v] = exp2<float>(top[v] - highest[v]);
      changed |= factor[v] != 1.f;
      total[v] = total[v] * factor[v];
      top[v] = highest[v];
    }
    const auto weigh = [&](int64_t j, int v) FUSEBENCH_LAMBDA {
      const Vec p = exp2<T>(load(scores + j * kNR + v * kW) * scale - top[v]);
      total[v] += p;
      return p;
    };
    int64_t j = 0;
    for (; j + 2 <= n; j += 2) {
#pragma GCC unroll 2
      for (int v = 0; v < kNV; v++) store_pair(probs, j, v, weigh(j, v), weigh(j + 1, v));
    }
    for (int v = 0; j < n && v < kNV; v++) store_pair(probs, j, v, weigh(j, v), Vec{});
    for (j += n % 2; kPair<P> == 2 && j < round_up<int64_t>(n, kKPad<P>); j++) {
      if (j % 2 == 0) {
        for (int v = 0; v < kNV; v++) store_pair(probs, j, v, Vec{}, Vec{});
      }
    }
    bool any = false;
    for (int i = 0; i < kW; i++) any |= changed[i] != 0;
    return any;
  }

 private:
  // Keys j and j + 1, j even, of a panel.
  static FUSEBENCH_INLINE void store_pair(float* panel, int64_t j, int v, Vec even, Vec odd) {
    store(panel + j * kNR + v * kW, even);
    store(panel + (j + 1) * kNR + v * kW, odd);
  }
#if FUSEBENCH_ISA_LEVEL >= 3
  static FUSEBENCH_INLINE void store_pair(bf16* panel, int64_t j, int v, Vec even, Vec odd) {
    alignas(64) static const uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                   21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                   11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    _mm512_storeu_si512(panel + j * kNR + v * 2 * kW,
                        _mm512_permutexvar_epi16(_mm512_load_si512(order), both));
  }
#endif
};

// One block of up to kNR queries.
template <class T>
struct AttentionBlock {
  using P = Operand<T>;
  static constexpr int64_t kRows = kNR;
  // Keys between two updates of the maxima: whole panels and whole steps.
  static constexpr int64_t kChunk = kAmx<P>          ? 256
                                    : sizeof(P) == 2 ? 16 * kTileRows
                                                     : 128 / kTileRows * kTileRows;
  // Float probabilities take the place of their scores.
  static constexpr bool kInPlace = sizeof(P) == sizeof(float);
  static constexpr int64_t kBufferKeys = kChunk + 2;  // a pair may end one behind

  static size_t scratch_bytes(int64_t d) {
    return (kBufferKeys + round_up<int64_t>(d, kNR)) * kNR * sizeof(float) +
           (kInPlace ? 0 : kBufferKeys * kNR * sizeof(P)) +
           PackedHead<T>::padded_dim(d) * kNR * sizeof(P) + 4 * 128;
  }

  float* scores;  // [key][query]
  P* probs;       // the same as a panel
  float* output;  // [head_dim][query]
  P* queries;     // a panel, its columns are the queries

  AttentionBlock(char* scratch, int64_t d) {
    Layout layout;
    scores = reinterpret_cast<float*>(scratch + layout.add(kBufferKeys * kNR * sizeof(float)));
    output = reinterpret_cast<float*>(scratch +
                                      layout.add(round_up<int64_t>(d, kNR) * kNR * sizeof(float)));
    probs = kInPlace ? reinterpret_cast<P*>(scores)
                     : reinterpret_cast<P*>(scratch + layout.add(kBufferKeys * kNR * sizeof(P)));
    queries = reinterpret_cast<P*>(scratch + layout.bytes);
  }

  // Queries [0, rows) of q see the keys [0, limit + row) of the head, at most all of them.
  void run(const T* q, int64_t q_stride, int rows, const PackedHead<T>& head, int64_t limit,
           float scale, T* out, int64_t out_stride) const {
    const int64_t d = head.head_dim, dp = head.padded_dim(d);
    copy_queries(q, q_stride, rows, d, scale);
    const float to_log2 = (scale == 0 ? 1.f : __builtin_fabsf(scale)) * 1.44269504f;
    const int64_t end = min_of(limit + rows - 1, head.keys);
    RunningSoftmax softmax;
    for (int64_t j0 = 0; j0 < end; j0 += kChunk) {
      const int64_t n = min_of(kChunk, end - j0), np = head.padded_keys(n);
      for (int64_t j = 0; j < n; j += kMR<P>) {
        head.scores(j0 + j, int(min_of<int64_t>(kMR<P>, n - j)),
                    {queries, dp, scores + j * kNR, kNR, false, nullptr});
      }
      Vec factor[kNV];
      if (softmax.update<T>(scores, n, limit - j0, to_log2, probs, factor) && j0 > 0) {
        for (int64_t i = 0; i < d; i++) {
          for (int v = 0; v < kNV; v++) {
            float* row = output + i * kNR + v * kW;
            store(row, load(row) * factor[v]);
          }
        }
      }
      for (int64_t c = 0; c < d; c += kNR) {
        const int columns = int(min_of<int64_t>(kNR, d - c)), tiles = ceil_div(columns, kMR<P>);
        for (int t = 0; t < tiles; t++) {
          const int c0 = columns * t / tiles, m = columns * (t + 1) / tiles - c0;
          head.weigh(c + c0, m, j0, {probs, np, output + (c + c0) * kNR, kNR, j0 > 0, nullptr});
        }
      }
    }
    for (int v = 0; v * kW < rows; v++) {
      const Vec inverse = 1.f / softmax.total[v];
      const int count = min_of(rows - v * kW, kW);
      for (int64_t i = 0; i < d; i += kW) {
        Vec square[kW];
        for (int x = 0; x < kW; x++) square[x] = load(output + (i + x) * kNR + v * kW) * inverse;
        transpose(square);
        for (int r = 0; r < count; r++)
          store_lanes(out + (v * kW + r) * out_stride, i, d, square[r]);
      }
    }
  }

 private:
  // The queries take the sign of the scale, so that the maximum of the scores is the one of the
  // exponents, and a scale of zero.
  void copy_queries(const T* q, int64_t q_stride, int rows, int64_t d, float scale) const {
    for (int v = 0; v < kNV; v++) {
      const int count = max_of(0, min_of(rows - v * kW, kW));
      pack_columns(q + (count > 0 ? v * kW * q_stride : 0), q_stride, count, d,
                   queries + v * kW * kPair<P>);
    }
    if (scale > 0) return;
    const int64_t size = PackedHead<T>::padded_dim(d) * kNR;
    for (int64_t i = 0; i < size; i++) queries[i] = scale < 0 ? negate(queries[i]) : P{};
  }
  static float negate(float x) { return -x; }
  static bf16 negate(bf16 x) { return {uint16_t(x.bits ^ 0x8000)}; }
};

}  // namespace FUSEBENCH_ISA
}  // namespace fusebench
