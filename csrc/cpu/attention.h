// Flash-style attention: the core of sdpa. No buffer of q_len x kv_len; softmax in float32 with
// running maxima and sums over chunks of keys, both products on the GEMM's register tile.
#pragma once
#include "gemm.h"

namespace fusebench {
namespace FUSEBENCH_ISA {

// K and V of one KV head as panels: K's columns are keys, [keys / kNR] panels of head_dim rows;
// V's columns are its own, [head_dim / kNR] panels of keys rows.
template <class T>
struct PackedHead {
  using P = Operand<T>;
  P* k;
  P* v;
  int64_t head_dim, keys;  // true sizes

  static int64_t padded_dim(int64_t d) { return round_up<int64_t>(d, kKPad<P>); }
  static int64_t padded_keys(int64_t n) { return round_up<int64_t>(n, max_of(kNR, kKPad<P>)); }
  static int64_t k_size(int64_t d, int64_t n) { return padded_keys(n) * padded_dim(d); }
  static int64_t v_size(int64_t d, int64_t n) { return padded_keys(n) * round_up<int64_t>(d, kNR); }

  P* k_panel(int64_t key) const { return k + key * padded_dim(head_dim); }
  P* v_panel(int64_t column, int64_t key) const {
    return v + column * padded_keys(keys) + key * kNR;
  }
  // Keys [j0, j1), j0 a multiple of kNR and kKPad; j1 too, or the end.
  void pack(const T* ks, int64_t k_stride, const T* vs, int64_t v_stride, int64_t j0,
            int64_t j1) const {
    for (int64_t j = j0; j < j1; j += kW) {
      pack_columns(ks + j * k_stride, k_stride, int(min_of<int64_t>(kW, j1 - j)), head_dim,
                   k_panel(j / kNR * kNR) + j % kNR * kPair<P>);
    }
    if (round_up<int64_t>(j1, kW) % kNR != 0) {  // the panel's other half
      pack_columns(ks, k_stride, 0, head_dim, k_panel(j1 / kNR * kNR) + kW * kPair<P>);
    }
    const int64_t end = j1 == keys ? padded_keys(keys) : j1;
    for (int64_t d = 0; d < head_dim; d += kNR) {
      pack_rows(vs + j0 * v_stride + d, v_stride, int(min_of<int64_t>(kNR, head_dim - d)), j1 - j0,
                end - j0, v_panel(d, j0));
    }
  }
};

// One block of up to kRows queries.
template <class T>
struct AttentionBlock {
  using P = Operand<T>;
  static constexpr int64_t kChunk = 256;  // keys between two updates of the running maximum
  static constexpr int64_t kRows = kAmx<P> ? 32 : 2 * kMR<P>;
  static constexpr int64_t kScoreRow = kChunk + kW;
  // Float probabilities take the place of their scores.
  static constexpr bool kInPlace = sizeof(P) == sizeof(float);
  static constexpr int64_t kProbRow = kInPlace ? kScoreRow : kChunk + 32;

  static int64_t output_row(int64_t d) { return round_up<int64_t>(d, kNR) + kW; }
  static int64_t query_row(int64_t d) { return padded_lda(d); }
  static size_t scratch_bytes(int64_t d) {
    return kRows * (kScoreRow * sizeof(float) + (kInPlace ? 0 : kProbRow * sizeof(P)) +
                    output_row(d) * sizeof(float) + query_row(d) * sizeof(P)) +
           4 * 128;
  }

  float* scores;
  P* probs;
  float* output;
  P* queries;

  AttentionBlock(char* scratch, int64_t d) {
    Layout layout;
    scores = reinterpret_cast<float*>(scratch + layout.add(kRows * kScoreRow * sizeof(float)));
    probs = kInPlace ? reinterpret_cast<P*>(scores)
                     : reinterpret_cast<P*>(scratch + layout.add(kRows * kProbRow * sizeof(P)));
    output = reinterpret_cast<float*>(scratch + layout.add(kRows * output_row(d) * sizeof(float)));
    queries = reinterpret_cast<P*>(scratch + layout.bytes);
  }

  // Queries [0, rows) of q see the keys [0, limit + row) of the head, at most all of them.
  void run(const T* q, int64_t q_stride, int rows, const PackedHead<T>& head, int64_t limit,
           float scale, T* out, int64_t out_stride) const {
    const int64_t d = head.head_dim, dp = head.padded_dim(d), ldo = output_row(d);
    // In place where the tile can read them so: whole steps, rows that share no cache sets.
    const bool in_place = sizeof(T) == sizeof(P) && d == dp && scale >= 0 &&
                          q_stride * int64_t(sizeof(T)) % 2048 != 0;
    const int64_t ldq = in_place ? q_stride : query_row(d);
    const P* query = in_place ? reinterpret_cast<const P*>(q) : queries;
    if (!in_place) copy_queries(q, q_stride, rows, d, scale < 0);
    const int tiles = ceil_div(rows, kMR<P>);
    const int64_t end = min_of(limit + rows - 1, head.keys);
    const float to_log2 = __builtin_fabsf(scale) * 1.44269504f;
    float top[kRows], total[kRows];
    for (int64_t j0 = 0; j0 < end; j0 += kChunk) {
      const int64_t n = min_of(kChunk, end - j0), np = round_up<int64_t>(n, kKPad<P>);
      for (int t = 0; t < tiles; t++) {
        const int r0 = rows * t / tiles, m = rows * (t + 1) / tiles - r0;
        for (int64_t j = 0; j < n; j += kNR)
          tile_rows(m, query + r0 * ldq, ldq,
                    {head.k_panel(j0 + j), dp, scores + r0 * kScoreRow + j, kScoreRow, false,
                     head.k_panel(j0 + j + kNR)});
      }
      for (int r = 0; r < rows; r++) {
        const int64_t seen = max_of<int64_t>(0, min_of(min_of(limit + r, head.keys) - j0, n));
        softmax_row(scores + r * kScoreRow, probs + r * kProbRow, seen, np, to_log2, j0 == 0,
                    top[r], total[r], output + r * ldo, round_up<int64_t>(d, kNR));
      }
      for (int t = 0; t < tiles; t++) {
        const int r0 = rows * t / tiles, m = rows * (t + 1) / tiles - r0;
        for (int64_t c = 0; c < d; c += kNR)
          tile_rows(m, probs + r0 * kProbRow, kProbRow,
                    {head.v_panel(c, j0), np, output + r0 * ldo + c, ldo, j0 > 0,
                     head.v_panel(c + kNR, j0)});
      }
    }
    for (int r = 0; r < rows; r++) {
      const float inverse = 1.f / total[r];
      for (int64_t i = 0; i < d; i += kW)
        store_lanes(out + r * out_stride, i, d, load(output + r * ldo + i) * inverse);
    }
  }

 private:
  static float negate(float x) { return -x; }
  static bf16 negate(bf16 x) { return {uint16_t(x.bits ^ 0x8000)}; }

  // With a negative scale the maximum of the scores would be the minimum of the exponents: the
  // queries take the sign.
  void copy_queries(const T* q, int64_t q_stride, int rows, int64_t d, bool negative) const {
    const Prologue copy{Norm::none, nullptr, nullptr, 0.f};
    for (int r = 0; r < rows; r++) {
      P* query = queries + r * query_row(d);
      prepare_row(q + r * q_stride, d, copy, query);
      for (int64_t i = 0; negative && i < d; i++) query[i] = negate(query[i]);
    }
  }

  // probs = 2^(scores * to_log2 - max), zeros in [seen, np); brings the row's running maximum,
  // sum and output to the new maximum.
  static FUSEBENCH_INLINE void softmax_row(float* scores, P* probs, int64_t seen, int64_t np,
                                           float to_log2, bool first, float& top, float& total,
                                           float* output, int64_t width) {
    const int64_t whole = seen / kW * kW;
    const int rest = int(seen - whole);
    Vec m0 = set1(-__builtin_inff()), m1 = m0;
    int64_t j = 0;
    for (; j + 2 * kW <= whole; j += 2 * kW) {
      m0 = max_of(m0, load(scores + j));
      m1 = max_of(m1, load(scores + j + kW));
    }
    if (j < whole) m0 = max_of(m0, load(scores + j));
    if (rest > 0) m1 = max_of(m1, first_lanes(load(scores + whole), rest, -__builtin_inff()));
    float highest = max_lane(max_of(m0, m1)) * to_log2;
    if (seen == 0 || (!first && top > highest)) highest = top;
    const auto weigh = [&](int64_t at) FUSEBENCH_LAMBDA {
      return exp2<T>(load(scores + at) * to_log2 - highest);
    };
    Vec s0 = {}, s1 = {};
    for (j = 0; j + 2 * kW <= whole; j += 2 * kW) {
      const Vec a = weigh(j), b = weigh(j + kW);
      s0 += a;
      s1 += b;
      store(probs + j, a);
      store(probs + j + kW, b);
    }
    if (j < whole) {
      const Vec a = weigh(j);
      s0 += a;
      store(probs + j, a);
      j += kW;
    }
    if (rest > 0) {
      const Vec a = first_lanes(weigh(j), rest, 0.f);
      s1 += a;
      store(probs + j, a);
      j += kW;
    }
    for (; j < np; j += kW) store(probs + j, Vec{});
    const float added = sum(s0 + s1);
    if (first) {
      total = added;
    } else if (highest > top) {
      const float factor = exp2<float>(set1(top - highest))[0];
      total = total * factor + added;
      for (int64_t i = 0; i < width; i += kW) store(output + i, load(output + i) * factor);
    } else {
      total += added;
    }
    top = highest;
  }
};

}  // namespace FUSEBENCH_ISA
}  // namespace fusebench
