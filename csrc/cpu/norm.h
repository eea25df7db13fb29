// The prologue of a GEMM: rows of x, normalised on request, as rows of the left operand.
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

// x [m, k] as the left operand of a GEMM: in place where nothing has to be done to it, else a
// phase of `tasks` writes it to a buffer whose rows do not compete for the same cache sets.
template <class T>
struct LeftOperand {
  using P = Operand<T>;
  const T* x;
  int64_t m, k;
  Prologue prologue;
  bool in_place;
  int64_t lda, tasks;
  P* buffer = nullptr;

  LeftOperand(const void* x_, int64_t m_, int64_t k_, const Prologue& prologue_, int workers)
      : x(static_cast<const T*>(x_)), m(m_), k(k_), prologue(prologue_) {
    constexpr int64_t kCollide = kMR<P> > 16 ? 2048 : 4096;
    in_place = sizeof(T) == sizeof(P) && prologue.norm == Norm::none && k % kKPad<P> == 0 &&
               (m <= 4 || k * int64_t(sizeof(P)) % kCollide != 0);
    lda = in_place ? k : padded_lda(k);
    tasks = in_place ? 0 : min_of<int64_t>(m, 4 * workers);
  }
  static int64_t padded_lda(int64_t k) { return round_up<int64_t>(k, 32) + 32; }
  size_t bytes() const { return in_place ? 0 : m * lda * sizeof(P); }
  const P* rows() const { return in_place ? reinterpret_cast<const P*>(x) : buffer; }
  void run(int64_t task) const {
    for (int64_t r = m * task / tasks; r < m * (task + 1) / tasks; r++)
      prepare_row(x + r * k, k, prologue, buffer + r * lda);
  }
};

}  // namespace FUSEBENCH_ISA
}  // namespace fusebench
