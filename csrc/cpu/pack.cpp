// Packing right-hand operands into panels for one instruction set.
#include "tile.h"

namespace fusebench {
namespace FUSEBENCH_ISA {

namespace {

// kW steps along k of one row, in 32-bit units: floats, or pairs of bf16.
template <class P, class T>
FUSEBENCH_INLINE Vec load_steps(const T* p, int64_t n) {
  if constexpr (sizeof(P) == 4) {
    return n >= kW ? load(p) : load(p, int(n));
  } else {
#if FUSEBENCH_ISA_LEVEL >= 3
    const __mmask32 mask = n >= 2 * kW ? ~0u : (1u << n) - 1;
    return (Vec)_mm512_maskz_loadu_epi16(mask, p);
#endif
  }
}

template <class P, class T>
FUSEBENCH_INLINE void pack_columns_of(const T* w, int64_t ldw, int n, int64_t k, P* panel) {
  const int64_t steps = round_up<int64_t>(k, kKPad<P>) / kPair<P>;
  float* out = reinterpret_cast<float*>(panel);
  for (int64_t s = 0; s < steps; s += kW) {
    Vec rows[kW];
    const int64_t k0 = s * kPair<P>;
    if (n == kW && k0 + kW * kPair<P> <= k) {
#pragma GCC unroll 16
      for (int i = 0; i < kW; i++) rows[i] = load_steps<P>(w + i * ldw + k0, kW * kPair<P>);
    } else {
      for (int i = 0; i < kW; i++)
        rows[i] = i < n && k0 < k ? load_steps<P>(w + i * ldw + k0, k - k0) : Vec{};
    }
    transpose(rows);
    const int64_t left = min_of<int64_t>(steps - s, kW);
    if (left == kW) {
#pragma GCC unroll 16
      for (int i = 0; i < kW; i++) store(out + (s + i) * kNR, rows[i]);
    } else {
      for (int i = 0; i < left; i++) store(out + (s + i) * kNR, rows[i]);
    }
  }
}

template <class T>
FUSEBENCH_INLINE void pack_rows_of(const T* w, int64_t ldw, int n, int64_t k, int64_t kp,
                                   float* panel) {
  for (int64_t i = 0; i < kp; i++, panel += kNR) {
#pragma GCC unroll 2
    for (int v = 0; v < kNV; v++) {
      const int left = i < k ? n - v * kW : 0;
      const T* row = w + i * ldw + v * kW;
      store(panel + v * kW, left >= kW ? load(row) : left > 0 ? load(row, left) : Vec{});
    }
  }
}

#if FUSEBENCH_ISA_LEVEL >= 3
void pack_row_pairs(const bf16* w, int64_t ldw, int n, int64_t k, int64_t kp, bf16* panel) {
  alignas(64) uint16_t low[32], high[32];
  for (int i = 0; i < 32; i++) {
    low[i] = uint16_t(i / 2 + i % 2 * 32);
    high[i] = uint16_t(16 + low[i]);
  }
  const __m512i low_index = _mm512_load_si512(low), high_index = _mm512_load_si512(high);
  const __mmask32 mask = n >= kNR ? ~0u : (1u << n) - 1;
  for (int64_t i = 0; i < kp; i += 2, panel += 2 * kNR) {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i even = i < k ? _mm512_maskz_loadu_epi16(mask, w + i * ldw) : zero;
    const __m512i odd = i + 1 < k ? _mm512_maskz_loadu_epi16(mask, w + (i + 1) * ldw) : zero;
    _mm512_storeu_si512(panel, _mm512_permutex2var_epi16(even, low_index, odd));
    _mm512_storeu_si512(panel + kNR, _mm512_permutex2var_epi16(even, high_index, odd));
  }
}
#endif

}  // namespace

void pack_columns(const float* w, int64_t ldw, int n, int64_t k, float* panel) {
  pack_columns_of(w, ldw, n, k, panel);
}
void pack_columns(const bf16* w, int64_t ldw, int n, int64_t k, Operand<bf16>* panel) {
  pack_columns_of(w, ldw, n, k, panel);
}

void pack_rows(const float* w, int64_t ldw, int n, int64_t k, int64_t kp, float* panel) {
  pack_rows_of(w, ldw, n, k, kp, panel);
}
#if FUSEBENCH_ISA_LEVEL >= 3
void pack_rows(const bf16* w, int64_t ldw, int n, int64_t k, int64_t kp, bf16* panel) {
  pack_row_pairs(w, ldw, n, k, kp, panel);
}
#else
void pack_rows(const bf16* w, int64_t ldw, int n, int64_t k, int64_t kp, float* panel) {
  pack_rows_of(w, ldw, n, k, kp, panel);
}
#endif

}  // namespace FUSEBENCH_ISA
}  // namespace fusebench
