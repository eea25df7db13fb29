// The prologue of a GEMM: rows of x, normalised on request, as its left operand (rows or panels).
#pragma once
#include "tile.h"

namespace fusebench {
namespace FUSEBENCH_ISA {

template <class T>
FUSEBENCH_INLINE Vec load_lanes(const T* p, int64_t i, int64_t size) {
  return size - i >= kW ? load(p + i) : load(p + i, int(size - i));
}
template <class T>
FUSEBENCH_INLINE void store_lanes(T* p, int64_t i, int64_t size, Vec v) {
  if (size - i >= kW) {
    store(p + i, v);
  } else {
    store(p + i, v, int(size - i));
  }
}

// What normalising a row takes: (x - mean) * scale.
struct RowStatistics {
  float mean, scale;
};

// Two passes, and the rounding error of the mean is measured in the second one and taken off:
// rows whose mean is far larger than their deviation stay right.
template <class T>
FUSEBENCH_INLINE RowStatistics row_statistics(const T* x, int64_t k, bool centred, float eps) {
  const float inv_k = 1.f / float(k);
  const int64_t whole = k / kW * kW, pairs = k / (2 * kW) * (2 * kW);
  const int rest = int(k - whole);
  float mean = 0.f;
  if (centred) {
    Vec s0 = {}, s1 = {};
    for (int64_t i = 0; i < pairs; i += 2 * kW) {
      s0 += load(x + i);
      s1 += load(x + i + kW);
    }
    if (pairs < whole) s0 += load(x + pairs);
    if (rest > 0) s1 += load(x + whole, rest);
    mean = sum(s0 + s1) * inv_k;
  }
  Vec q0 = {}, q1 = {}, d0 = {}, d1 = {};
  for (int64_t i = 0; i < pairs; i += 2 * kW) {
    const Vec a = load(x + i) - mean, b = load(x + i + kW) - mean;
    q0 += a * a;
    q1 += b * b;
    if (centred) {
      d0 += a;
      d1 += b;
    }
  }
  if (pairs < whole) {
    const Vec a = load(x + pairs) - mean;
    q0 += a * a;
    d0 += a;
  }
  if (rest > 0) {
    const Vec a = first_lanes(load(x + whole, rest) - mean, rest, 0.f);
    q1 += a * a;
    d1 += a;
  }
  float squares = sum(q0 + q1);
  if (centred) {
    const float left = sum(d0 + d1), correction = left * inv_k;
    squares -= left * correction;
    mean += correction;
  }
  return {mean, 1.f / __builtin_sqrtf(squares * inv_k + eps)};
}

// out[0, k) = f(vector of x, its index, its lanes), then zeros up to the operand's padding.
template <class T, class F>
FUSEBENCH_INLINE void map_row(const T* x, int64_t k, Operand<T>* out, const F& f) {
  int64_t i = 0;
  for (; i + kW <= k; i += kW) store(out + i, f(load(x + i), i, kW));
  if (i < k) store(out + i, f(load(x + i, int(k - i)), i, int(k - i)), int(k - i));
  for (i = k; i < round_up<int64_t>(k, kKPad<Operand<T>>); i++) out[i] = Operand<T>{};
}

// out[0, k) = norm(x[0, k)), then zeros up to k rounded up to the operand's padding.
template <class T>
void prepare_row(const T* x, int64_t k, const Prologue& prologue, Operand<T>* out) {
  const T* weight = static_cast<const T*>(prologue.weight);
  const T* bias = static_cast<const T*>(prologue.bias);
  if (prologue.norm == Norm::none) {
    return map_row(x, k, out, [](Vec v, int64_t, int) FUSEBENCH_LAMBDA { return v; });
  }
  const RowStatistics s = prologue.norm == Norm::layernorm
                              ? row_statistics(x, k, true, prologue.eps)
                              : row_statistics(x, k, false, prologue.eps);
  const auto norm = [&](Vec v) FUSEBENCH_LAMBDA { return (v - s.mean) * s.scale; };
  const auto at = [](const T* p, int64_t i, int n)
                      FUSEBENCH_LAMBDA { return n == kW ? load(p + i) : load(p + i, n); };
  if (weight && bias) {
    map_row(x, k, out, [&](Vec v, int64_t i, int n) FUSEBENCH_LAMBDA {
      return norm(v) * at(weight, i, n) + at(bias, i, n);
    });
  } else if (weight) {
    map_row(x, k, out,
            [&](Vec v, int64_t i, int n) FUSEBENCH_LAMBDA { return norm(v) * at(weight, i, n); });
  } else if (bias) {
    map_row(x, k, out,
            [&](Vec v, int64_t i, int n) FUSEBENCH_LAMBDA { return norm(v) + at(bias, i, n); });
  } else {
    map_row(x, k, out, [&](Vec v, int64_t, int) FUSEBENCH_LAMBDA { return norm(v); });
  }
}

// Elements between rows that do not compete for the same cache sets.
constexpr int64_t padded_lda(int64_t k) { return round_up<int64_t>(k, 32) + 32; }

// Columns [k, k + n), k a multiple of kW and n <= kW, of the rows of a left panel, a vector each.
FUSEBENCH_INLINE void store_columns(float* panel, int64_t k, int n, Vec (&rows)[kLeftRows]) {
  for (int g = 0; g < kLeftRows; g += kW) {
    Vec(&square)[kW] = reinterpret_cast<Vec(&)[kW]>(rows[g]);
    transpose(square);
    for (int i = 0; i < n; i++) store(panel + (k + i) * kLeftRows + g, square[i]);
  }
}
#if FUSEBENCH_ISA_LEVEL >= 3
// All kW columns, so that zeros fill the padding.
FUSEBENCH_INLINE void store_columns(bf16* panel, int64_t k, int, Vec (&rows)[kLeftRows]) {
  Vec pairs[kW];
  for (int r = 0; r < kW; r++) pairs[r] = (Vec)_mm512_castsi256_si512((__m256i)narrow(rows[r]));
  transpose(pairs);
  for (int i = 0; i < kW / 2; i++)
    store(reinterpret_cast<float*>(panel) + (k / 2 + i) * kLeftRows, pairs[i]);
}
#endif

// How m rows of k operands lie in memory as the left side of a GEMM: as rows, padded_lda() apart,
// for dot_rows() and AMX, or as panels for tile(). Panels and tiles have equal height, so that
// none is too short to hide the latency of its sums.
template <class T>
struct LeftLayout {
  using P = Operand<T>;
  static constexpr int64_t kFewRows = kAmx<P> ? 16 : 12, kFewRowsPacked = 4;
  int64_t m, k;
  bool few, in_panels;

  LeftLayout(int64_t m_, int64_t k_, bool few_)
      : m(m_), k(k_), few(few_), in_panels(!few && kLeftPanels<P>) {}

  // Whether dot_rows() is the better way: the tile would be mostly empty.
  static bool is_few(int64_t m, int64_t columns, bool packed_weight) {
    return m <= (packed_weight ? kFewRowsPacked : kFewRows) || columns < kNR / 2;
  }

  int64_t padded_k() const { return round_up<int64_t>(k, kKPad<P>); }
  int64_t panel_size() const { return padded_k() * kLeftRows; }
  int64_t tiles() const { return ceil_div<int64_t>(m, kMR<P>); }
  int64_t edge(int64_t tile) const { return m * tile / tiles(); }
  int64_t tile_of(int64_t row) const { return ((row + 1) * tiles() - 1) / m; }
  size_t bytes() const {
    return (in_panels ? tiles() * panel_size() : m * padded_lda(k)) * sizeof(P);
  }
};

// x [m, k] as the left operand of a GEMM: in place where nothing has to be done to it, else a
// phase of `tasks` writes it to a buffer.
template <class T>
struct LeftOperand : LeftLayout<T> {
  using P = Operand<T>;
  using Layout = LeftLayout<T>;
  using Layout::k;
  using Layout::m;
  const T* x;
  Prologue prologue;
  bool in_place;
  int64_t lda, tasks;
  P* buffer = nullptr;

  LeftOperand(const void* x_, const Layout& layout, const Prologue& prologue_, int workers)
      : Layout(layout), x(static_cast<const T*>(x_)), prologue(prologue_) {
    in_place = !Layout::in_panels && sizeof(T) == sizeof(P) && prologue.norm == Norm::none &&
               k % kKPad<P> == 0 && (Layout::few || k * int64_t(sizeof(P)) % 2048 != 0);
    lda = in_place ? k : padded_lda(k);
    tasks = in_place ? 0 : Layout::in_panels ? Layout::tiles() : min_of<int64_t>(m, 4 * workers);
  }
  size_t bytes() const { return in_place ? 0 : Layout::bytes(); }
  const P* data() const { return in_place ? reinterpret_cast<const P*>(x) : buffer; }

  void run(int64_t task) const {
    if (!Layout::in_panels) {
      for (int64_t r = m * task / tasks; r < m * (task + 1) / tasks; r++)
        prepare_row(x + r * k, k, prologue, buffer + r * lda);
    } else if constexpr (kLeftPanels<P>) {
      const int64_t row = Layout::edge(task);
      prepare_panel(x + row * k, int(Layout::edge(task + 1) - row),
                    buffer + task * Layout::panel_size());
    }
  }

 private:
  void prepare_panel(const T* rows, int count, P* panel) const {
    RowStatistics statistics[kMR<P>] = {};
    if (prologue.norm != Norm::none) {
      for (int r = 0; r < count; r++)
        statistics[r] =
            row_statistics(rows + r * k, k, prologue.norm == Norm::layernorm, prologue.eps);
    }
    const T* weight = static_cast<const T*>(prologue.weight);
    const T* bias = static_cast<const T*>(prologue.bias);
    for (int64_t i = 0; i < Layout::padded_k(); i += kW) {
      Vec columns[kLeftRows] = {};
      const int n = int(max_of<int64_t>(0, min_of<int64_t>(k - i, kW)));
      if (n > 0 && prologue.norm == Norm::none) {
        for (int r = 0; r < count; r++) columns[r] = load_lanes(rows + r * k, i, k);
      } else if (n > 0) {
        const Vec scale = weight ? load_lanes(weight, i, k) : first_lanes(set1(1.f), n, 0.f);
        const Vec shift = bias ? load_lanes(bias, i, k) : Vec{};
        for (int r = 0; r < count; r++) {
          const RowStatistics& s = statistics[r];
          columns[r] = (load_lanes(rows + r * k, i, k) - s.mean) * s.scale * scale + shift;
        }
      }
      store_columns(panel, i, n, columns);
    }
  }
};

}  // namespace FUSEBENCH_ISA
}  // namespace fusebench
