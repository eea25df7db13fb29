// Flash-style attention on float operands: scores are columns of queries. The softmax runs down the
// vectors, with no sum across one, and what it leaves is the left operand of the second product.
#pragma once
#include "attention.h"

namespace fusebench {
namespace FUSEBENCH_ISA {

// K as left panels of kTileRows keys; V's columns as panels: [head_dim / kNR] of keys rows.
template <class T>
struct PackedHead<T, true> {
  float* k;
  float* v;
  int64_t head_dim, keys;
  static constexpr int64_t kPackKeys = 18 * kTileRows;

  static int64_t k_size(int64_t d, int64_t n) {
    return ceil_div<int64_t>(n, kTileRows) * d * kLeftRows;
  }
  static int64_t v_size(int64_t d, int64_t n) { return n * round_up<int64_t>(d, kNR); }

  float* k_panel(int64_t key) const { return k + key / kTileRows * head_dim * kLeftRows; }
  float* v_panel(int64_t column, int64_t key) const { return v + column * keys + key * kNR; }

  // Keys [j0, j1), j0 a multiple of kTileRows; j1 too, or the end.
  void pack(const T* ks, int64_t k_stride, const T* vs, int64_t v_stride, int64_t j0,
            int64_t j1) const {
    for (int64_t j = j0; j < j1; j += kTileRows) {
      const int rows = int(min_of<int64_t>(kTileRows, j1 - j));
      for (int64_t i = 0; i < head_dim; i += kW) {
        Vec columns[kLeftRows] = {};
        for (int r = 0; r < rows; r++)
          columns[r] = load_lanes(ks + (j + r) * k_stride, i, head_dim);
        store_columns(k_panel(j), i, int(min_of<int64_t>(kW, head_dim - i)), columns);
      }
    }
    for (int64_t d = 0; d < head_dim; d += kNR) {
      pack_rows(vs + j0 * v_stride + d, v_stride, int(min_of<int64_t>(kNR, head_dim - d)), j1 - j0,
                j1 - j0, v_panel(d, j0));
    }
  }
};

// One block of up to kNR queries.
template <class T>
struct AttentionBlock<T, true> {
  static constexpr int64_t kRows = kNR;
  static constexpr int64_t kChunk = 9 * kTileRows;  // keys between two updates of the maxima

  static int64_t output_row(int64_t d) { return round_up<int64_t>(d, kNR) + kW; }
  static size_t scratch_bytes(int64_t d) {
    return (kChunk * kNR + kRows * output_row(d) + d * kNR) * sizeof(float) + 3 * 128;
  }

  float* scores;   // [key][query], then the probabilities
  float* output;   // [query][head_dim]
  float* queries;  // a panel, its columns are the queries

  AttentionBlock(char* scratch, int64_t d) {
    Layout layout;
    scores = reinterpret_cast<float*>(scratch + layout.add(kChunk * kNR * sizeof(float)));
    output = reinterpret_cast<float*>(scratch + layout.add(kRows * output_row(d) * sizeof(float)));
    queries = reinterpret_cast<float*>(scratch + layout.bytes);
  }

  // Queries [0, rows) of q see the keys [0, limit + row) of the head, at most all of them.
  void run(const T* q, int64_t q_stride, int rows, const PackedHead<T>& head, int64_t limit,
           float scale, T* out, int64_t out_stride) const {
    const int64_t d = head.head_dim, ldo = output_row(d);
    copy_queries(q, q_stride, rows, d, scale * 1.44269504f);
    const int64_t end = min_of(limit + rows - 1, head.keys);
    const int tiles = ceil_div(rows, kTileRows);
    Softmax softmax;
    for (int64_t j0 = 0; j0 < end; j0 += kChunk) {
      const int64_t n = min_of(kChunk, end - j0);
      for (int64_t j = 0; j < n; j += kTileRows) {
        tile(int(min_of<int64_t>(kTileRows, n - j)), head.k_panel(j0 + j),
             {queries, d, scores + j * kNR, kNR, false, queries});
      }
      alignas(64) float factor[kNR];
      if (softmax.update(scores, n, limit - j0, factor) && j0 > 0) {
        for (int r = 0; r < rows; r++) {
          for (int64_t i = 0; i < d; i += kW)
            store(output + r * ldo + i, load(output + r * ldo + i) * factor[r]);
        }
      }
      for (int64_t c = 0; c < d; c += kNR) {
        for (int t = 0; t < tiles; t++) {
          const int r0 = rows * t / tiles, m = rows * (t + 1) / tiles - r0;
          tile_columns(m, scores + r0,
                       {head.v_panel(c, j0), n, output + r0 * ldo + c, ldo, j0 > 0,
                        t + 1 < tiles ? head.v_panel(c, j0) : head.v_panel(c + kNR, j0)});
        }
      }
    }
    for (int r = 0; r < rows; r++) {
      const float inverse = 1.f / softmax.total[r / kW][r % kW];
      for (int64_t i = 0; i < d; i += kW)
        store_lanes(out + r * out_stride, i, d, load(output + r * ldo + i) * inverse);
    }
  }

 private:
  // What the queries have seen so far: the highest score and the sum of 2^(score - highest).
  struct Softmax {
    Vec top[kNV], total[kNV];

    Softmax() {
      for (int v = 0; v < kNV; v++) {
        top[v] = set1(-__builtin_inff());
        total[v] = Vec{};
      }
    }

    // scores [n][kNR] become 2^(score - highest so far). Query r sees key j where j < limit + r.
    // factor: what earlier sums have to be multiplied by; false if that is 1 for all.
    bool update(float* scores, int64_t n, int64_t limit, float* factor) {
      for (int64_t j = max_of<int64_t>(0, limit); j < n; j++) {
        const int blind = int(j - limit) + 1;  // the first queries that do not see it
        for (int v = 0; v < kNV; v++) {
          float* row = scores + j * kNR + v * kW;
          store(row, last_lanes(load(row), blind - v * kW, -__builtin_inff()));
        }
      }
      Vec highest[kNV];
      for (int v = 0; v < kNV; v++) highest[v] = top[v];
      for (int64_t j = 0; j < n; j++) {
        for (int v = 0; v < kNV; v++)
          highest[v] = max_of(highest[v], load(scores + j * kNR + v * kW));
      }
      VecI changed = {};
      for (int v = 0; v < kNV; v++) {
        const Vec f = exp2<float>(top[v] - highest[v]);
        store(factor + v * kW, f);
        changed |= f != 1.f;
        total[v] = total[v] * f;
        top[v] = highest[v];
      }
      Vec sums[kNV] = {};
      for (int64_t j = 0; j < n; j++) {
        for (int v = 0; v < kNV; v++) {
          float* row = scores + j * kNR + v * kW;
          const Vec p = exp2<T>(load(row) - top[v]);
          sums[v] += p;
          store(row, p);
        }
      }
      for (int v = 0; v < kNV; v++) total[v] += sums[v];
      bool any = false;
      for (int i = 0; i < kW; i++) any |= changed[i] != 0;
      return any;
    }
  };

  void copy_queries(const T* q, int64_t q_stride, int rows, int64_t d, float scale) const {
    for (int v = 0; v < kNV; v++) {
      const int count = max_of(0, min_of(rows - v * kW, kW));
      pack_columns(q + (count > 0 ? v * kW * q_stride : 0), q_stride, count, d, queries + v * kW);
    }
    for (int64_t i = 0; i < d * kNR; i += kW) store(queries + i, load(queries + i) * scale);
  }
};

}  // namespace FUSEBENCH_ISA
}  // namespace fusebench
