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
RowStatistics row_statistics(const T* x, int64_t k, Norm norm, float eps) {
  const float inv_k = 1.f / float(k);
  float mean = 0.f;
  if (norm == Norm::layernorm) {
    Vec s0 = {}, s1 = {};
    int64_t i = 0;
    for (; i + 2 * kW <= k; i += 2 * kW) {
      s0 += load(x + i);
      s1 += load(x + i + kW);
    }
    for (; i < k; i += kW) s0 += load_lanes(x, i, k);
    mean = sum(s0 + s1) * inv_k;
  }
  Vec q0 = {}, q1 = {}, d0 = {}, d1 = {};
  int64_t i = 0;
  for (; i + 2 * kW <= k; i += 2 * kW) {
    const Vec a = load(x + i) - mean, b = load(x + i + kW) - mean;
    q0 += a * a;
    q1 += b * b;
    d0 += a;
    d1 += b;
  }
  for (; i + kW <= k; i += kW) {
    const Vec a = load(x + i) - mean;
    q0 += a * a;
    d0 += a;
  }
  float squares = sum(q0 + q1), rest = sum(d0 + d1);
  for (; i < k; i++) {
    const float a = to_float(x[i]) - mean;
    squares += a * a;
    rest += a;
  }
  if (norm == Norm::layernorm) {
    const float correction = rest * inv_k;
    squares -= rest * correction;
    mean += correction;
  }
  return {mean, 1.f / __builtin_sqrtf(squares * inv_k + eps)};
}

// out[0, k) = norm(x[0, k)), then zeros up to k rounded up to the operand's padding.
template <class T>
void prepare_row(const T* x, int64_t k, const Prologue& prologue, Operand<T>* out) {
  const T* weight = static_cast<const T*>(prologue.weight);
  const T* bias = static_cast<const T*>(prologue.bias);
  if (prologue.norm == Norm::none) {
    for (int64_t i = 0; i < k; i += kW) store_lanes(out, i, k, load_lanes(x, i, k));
  } else {
    const RowStatistics s = row_statistics(x, k, prologue.norm, prologue.eps);
    for (int64_t i = 0; i < k; i += kW) {
      Vec v = (load_lanes(x, i, k) - s.mean) * s.scale;
      if (weight) v *= load_lanes(weight, i, k);
      if (bias) v += load_lanes(bias, i, k);
      store_lanes(out, i, k, v);
    }
  }
  const int64_t padded = round_up<int64_t>(k, kKPad<Operand<T>>);
  for (int64_t i = k; i < padded; i++) out[i] = Operand<T>{};
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
