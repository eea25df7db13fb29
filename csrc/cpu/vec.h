// A vector of floats as wide as the instruction set's, and what the kernels do with one.
//
// Kernel files are compiled once per instruction set, with FUSEBENCH_ISA naming it (it is also
// the namespace, so that no two of them share a symbol) and FUSEBENCH_ISA_LEVEL ranking it:
// 0 portable, 1 AVX2 + FMA, 2 AVX-512, 3 with bf16 dot products, 4 with AMX tiles. Arithmetic is
// written with the compiler's vector types, which every target has; intrinsics appear only
// where they are much better. Anything not inlined that is shared with other translation units
// (the standard library's templates) must stay out of these files: the linker could pick
// the copy that was compiled for a wider instruction set than the CPU has.
#pragma once
#include <cstdint>
#include <cstring>

#include "kernels.h"

#ifndef FUSEBENCH_ISA
#define FUSEBENCH_ISA portable
#define FUSEBENCH_ISA_LEVEL 0
#endif
#if FUSEBENCH_ISA_LEVEL >= 1
#include <immintrin.h>
#endif

#define FUSEBENCH_INLINE inline __attribute__((always_inline))
#define FUSEBENCH_LAMBDA __attribute__((always_inline))

namespace fusebench {
namespace FUSEBENCH_ISA {

constexpr int kW = FUSEBENCH_ISA_LEVEL >= 2 ? 16 : FUSEBENCH_ISA_LEVEL == 1 ? 8 : 4;

typedef float Vec __attribute__((vector_size(kW * 4)));
typedef int32_t VecI __attribute__((vector_size(kW * 4)));
typedef uint32_t VecU __attribute__((vector_size(kW * 4)));
typedef uint16_t VecH __attribute__((vector_size(kW * 2)));

template <class I>
constexpr I ceil_div(I a, I b) {
  return (a + b - 1) / b;
}
template <class I>
constexpr I round_up(I a, I b) {
  return ceil_div(a, b) * b;
}
template <class I>
constexpr I min_of(I a, I b) {
  return a < b ? a : b;
}
template <class I>
constexpr I max_of(I a, I b) {
  return a > b ? a : b;
}

FUSEBENCH_INLINE Vec set1(float x) { return x - Vec{}; }

FUSEBENCH_INLINE Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
FUSEBENCH_INLINE void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

FUSEBENCH_INLINE Vec widen(VecH h) { return (Vec)(__builtin_convertvector(h, VecU) << 16); }
FUSEBENCH_INLINE Vec load(const bf16* p) {
  VecH h;
  std::memcpy(&h, p, sizeof h);
  return widen(h);
}

// Rounds to nearest, ties to even; a NaN stays one.
FUSEBENCH_INLINE VecH narrow(Vec v) {
#if FUSEBENCH_ISA_LEVEL >= 3
  return (VecH)_mm512_cvtneps_pbh(v);
#else
  const VecU u = (VecU)v;
  const VecU rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
  const VecU nan = u >> 16 | 0x40;
  return __builtin_convertvector(v == v ? rounded : nan, VecH);
#endif
}
FUSEBENCH_INLINE void store(bf16* p, Vec v) {
  const VecH h = narrow(v);
  std::memcpy(p, &h, sizeof h);
}

// The first n < kW lanes; the others are zero, or left alone in memory.
FUSEBENCH_INLINE Vec load(const float* p, int n) {
#if FUSEBENCH_ISA_LEVEL >= 2
  return _mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p);
#else
  Vec v = {};
  std::memcpy(&v, p, n * sizeof *p);
  return v;
#endif
}
FUSEBENCH_INLINE Vec load(const bf16* p, int n) {
#if FUSEBENCH_ISA_LEVEL >= 2
  return widen((VecH)_mm256_maskz_loadu_epi16(__mmask16((1u << n) - 1), p));
#else
  VecH h = {};
  std::memcpy(&h, p, n * sizeof *p);
  return widen(h);
#endif
}
FUSEBENCH_INLINE void store(float* p, Vec v, int n) {
#if FUSEBENCH_ISA_LEVEL >= 2
  _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), v);
#else
  std::memcpy(p, &v, n * sizeof *p);
#endif
}
FUSEBENCH_INLINE void store(bf16* p, Vec v, int n) {
  const VecH h = narrow(v);
#if FUSEBENCH_ISA_LEVEL >= 2
  _mm256_mask_storeu_epi16(p, __mmask16((1u << n) - 1), (__m256i)h);
#else
  std::memcpy(p, &h, n * sizeof *p);
#endif
}

FUSEBENCH_INLINE float to_float(float x) { return x; }
FUSEBENCH_INLINE float to_float(bf16 x) {
  const uint32_t u = uint32_t(x.bits) << 16;
  float f;
  std::memcpy(&f, &u, sizeof f);
  return f;
}

// 0, 1, 2, ..
FUSEBENCH_INLINE VecI lanes() {
  static const int32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  VecI v;
  std::memcpy(&v, numbers, sizeof v);
  return v;
}
// v with `fill` in the lanes from n on.
FUSEBENCH_INLINE Vec first_lanes(Vec v, int n, float fill) { return lanes() < n ? v : set1(fill); }
// v with `fill` in the lanes before n.
FUSEBENCH_INLINE Vec last_lanes(Vec v, int n, float fill) { return lanes() < n ? set1(fill) : v; }

FUSEBENCH_INLINE Vec max_of(Vec a, Vec b) {
#if FUSEBENCH_ISA_LEVEL >= 2
  return _mm512_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}
FUSEBENCH_INLINE Vec min_of(Vec a, Vec b) {
#if FUSEBENCH_ISA_LEVEL >= 2
  return _mm512_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}

FUSEBENCH_INLINE float sum(Vec v) {
#if FUSEBENCH_ISA_LEVEL >= 2
  return _mm512_reduce_add_ps(v);
#else
  float s = v[0];
  for (int i = 1; i < kW; i++) s += v[i];
  return s;
#endif
}
FUSEBENCH_INLINE float max_lane(Vec v) {
#if FUSEBENCH_ISA_LEVEL >= 2
  return _mm512_reduce_max_ps(v);
#else
  float m = v[0];
  for (int i = 1; i < kW; i++) m = v[i] > m ? v[i] : m;
  return m;
#endif
}

// 2^x for x <= 127, to 2e-7 for results in T = float and 4e-6 for bf16; 0 below the normal range.
template <class T>
FUSEBENCH_INLINE Vec exp2(Vec x) {
#if FUSEBENCH_ISA_LEVEL >= 2
  // Lanes that would underflow are left out: the result would take the core hundreds of cycles.
  const __mmask16 normal = _mm512_cmp_ps_mask(x, set1(-125.5f), _CMP_GT_OQ);
  const Vec n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  x = max_of(x, set1(-126.f));
  const Vec round = set1(12582912.f);  // 1.5 * 2^23: adding it leaves the nearest integer
  const Vec shifted = x + round;
  const Vec n = shifted - round;
#endif
  const Vec f = x - n;
  Vec p;
  if (sizeof(T) == 4) {
    p = 1.5403530e-4f * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
  } else {
    p = 9.675540961e-3f * f + 5.592203513e-2f;
    p = p * f + 2.402250767e-1f;
    p = p * f + 6.931217313e-1f;
  }
  p = p * f + 1.f;
#if FUSEBENCH_ISA_LEVEL >= 2
  return _mm512_maskz_scalef_ps(normal, p, n);
#else
  const Vec result = (Vec)((VecI)p + ((VecI)shifted << 23));
  return x > -126.f ? result : Vec{};
#endif
}

// g * sigmoid(g)
template <class T>
FUSEBENCH_INLINE Vec silu(Vec g) {
  const Vec d = 1.f + exp2<T>(min_of(g * -1.44269504f, set1(126.f)));
#if FUSEBENCH_ISA_LEVEL >= 2
  Vec r = _mm512_rcp14_ps(d);
  r = r * (2.f - d * r);
  return g * r;
#else
  return g / d;
#endif
}

// W vectors as the rows of a square become its columns: log2(W) rounds, each interleaving the
// first half of the rows with the second.
FUSEBENCH_INLINE void transpose(Vec (&rows)[kW]) {
#if FUSEBENCH_ISA_LEVEL >= 2
#define FUSEBENCH_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define FUSEBENCH_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif FUSEBENCH_ISA_LEVEL == 1
#define FUSEBENCH_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define FUSEBENCH_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define FUSEBENCH_LOW 0, 4, 1, 5
#define FUSEBENCH_HIGH 2, 6, 3, 7
#endif
#pragma GCC unroll 4
  for (int round = 1; round < kW; round *= 2) {
    Vec next[kW];
#pragma GCC unroll 16
    for (int i = 0; i < kW / 2; i++) {
      next[2 * i] = __builtin_shufflevector(rows[i], rows[i + kW / 2], FUSEBENCH_LOW);
      next[2 * i + 1] = __builtin_shufflevector(rows[i], rows[i + kW / 2], FUSEBENCH_HIGH);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kW; i++) rows[i] = next[i];
  }
#undef FUSEBENCH_LOW
#undef FUSEBENCH_HIGH
}

}  // namespace FUSEBENCH_ISA
}  // namespace fusebench
