// Register tiles and few-row dot products for one instruction set.
#include "tile.h"

namespace fusebench {
namespace FUSEBENCH_ISA {

namespace {

// One step along k of a row of the tile: float, or a pair of bf16.
template <class P>
struct Step;

template <>
struct Step<float> {
  using V = Vec;
  static FUSEBENCH_INLINE V load(const float* p) { return FUSEBENCH_ISA::load(p); }
  static FUSEBENCH_INLINE V broadcast(const float* p) { return set1(*p); }
  static FUSEBENCH_INLINE Vec multiply_add(Vec c, V a, V b) { return c + a * b; }
};

#if FUSEBENCH_ISA_LEVEL >= 3
template <>
struct Step<bf16> {
  using V = __m512i;
  static FUSEBENCH_INLINE V load(const bf16* p) { return _mm512_loadu_si512(p); }
  static FUSEBENCH_INLINE V broadcast(const bf16* p) {
    int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
  }
  static FUSEBENCH_INLINE Vec multiply_add(Vec c, V a, V b) {
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
  }
};
#endif

// Where the panel's rows kAhead behind row i of k are: in this panel (b is its row i) or the next.
template <class P>
FUSEBENCH_INLINE const P* ahead(const P* b, int64_t i, int64_t k, const P* next) {
  constexpr int64_t kAhead = 2048 / (kNR * sizeof(P));
  return i + kAhead < k ? b + kAhead * kNR : next + (i + kAhead - k) * kNR;
}
// Fetches kRows rows of a panel into the first-level cache.
template <int kRows, class P>
FUSEBENCH_INLINE void fetch(const P* rows) {
  constexpr int kLines = kRows * kNR * int(sizeof(P)) / 64;
#pragma GCC unroll 32
  for (int i = 0; i < kLines; i++) __builtin_prefetch(reinterpret_cast<const char*>(rows) + i * 64);
}

// Asks for row r of a target.
template <int kBytes>
FUSEBENCH_INLINE void fetch_target(const Target& target, int64_t r) {
#pragma GCC unroll 2
  for (int i = 0; i < kBytes; i += 64) {
    __builtin_prefetch(target.rows + r * target.stride + i, 1, 2);
    if (target.also) __builtin_prefetch(target.also + r * target.stride + i, 0, 2);
  }
}

// A left operand of which the tile reads row r at step i.
template <class P, int kStride>
struct Left {
  const P* a;
  FUSEBENCH_INLINE const P* at(int r, int64_t i) const { return a + i * kStride + r * kPair<P>; }
  Left from(int64_t i) const { return {a + i * kStride}; }
};

// Out of line: a call per tile costs nothing, and each size gets its own register allocation.
template <int M, class L, class P>
__attribute__((noinline)) void fma_tile(L a, const P* b, int64_t k, float* c, int64_t ldc,
                                        bool accumulate, const P* next, const Target& target) {
  using S = Step<P>;
  constexpr int kStep = kPair<P>;
  Vec acc[M][kNV];
#pragma GCC unroll 16
  for (int r = 0; r < M; r++) {
#pragma GCC unroll 2
    for (int v = 0; v < kNV; v++) acc[r][v] = Vec{};
  }
  const auto step = [&](int64_t i, const P* row) FUSEBENCH_LAMBDA {
    typename S::V bv[kNV];
#pragma GCC unroll 2
    for (int v = 0; v < kNV; v++) bv[v] = S::load(row + v * kW * kStep);
#pragma GCC unroll 16
    for (int r = 0; r < M; r++) {
      const typename S::V av = S::broadcast(a.at(r, i));
#pragma GCC unroll 2
      for (int v = 0; v < kNV; v++) acc[r][v] = S::multiply_add(acc[r][v], av, bv[v]);
    }
  };
  // Four steps at a time leave the integer work of the loop off the FMA units' ports.
  constexpr int kUnroll = 4;
  const int64_t rows_left = target.rows ? M * kUnroll * kStep : 0;
  int64_t i = 0;
  for (; i + kUnroll * kStep <= k; i += kUnroll * kStep, b += kUnroll * kNR * kStep) {
    if (next) fetch<kUnroll * kStep>(ahead(b, i, k, next));
    if (i < rows_left) fetch_target<kNR * sizeof(P)>(target, i / (kUnroll * kStep));
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; u++) step(i + u * kStep, b + u * kNR * kStep);
  }
  for (; i < k; i += kStep, b += kNR * kStep) step(i, b);
#pragma GCC unroll 16
  for (int r = 0; r < M; r++) {
#pragma GCC unroll 2
    for (int v = 0; v < kNV; v++) {
      float* out = c + r * ldc + v * kW;
      store(out, accumulate ? load(out) + acc[r][v] : acc[r][v]);
    }
  }
}

template <class L, class P, int M = kTileRows>
FUSEBENCH_INLINE void fma_tile_of(int m, L a, const P* b, int64_t k, float* c, int64_t ldc,
                                  bool accumulate, const P* next, const Target& target) {
  if constexpr (M > 1) {
    if (m < M) return fma_tile_of<L, P, M - 1>(m, a, b, k, c, ldc, accumulate, next, target);
  }
  fma_tile<M>(a, b, k, c, ldc, accumulate, next, target);
}

template <class L, class P>
FUSEBENCH_INLINE void tile_of(int m, L a, const TileArgs<P>& t) {
  // Sums of many terms are sums of sums: in one chain the rounding errors would outgrow those of
  // a blocked GEMM.
  constexpr int64_t kChain = FUSEBENCH_ISA_LEVEL > 0 ? 256 : 64;  // more roundings without FMA
  for (int64_t i = 0; i < t.k; i += kChain) {
    fma_tile_of(m, a.from(i), t.panel + i * kNR, min_of(kChain, t.k - i), t.c, t.ldc,
                t.accumulate || i > 0, i + kChain < t.k ? t.panel + (i + kChain) * kNR : t.next,
                i == 0 ? t.target : Target{});
  }
}

#if FUSEBENCH_ISA_LEVEL >= 4
// Two by two accumulators (tiles 0 to 3) of 16 x 16, two tiles of a (4, 5) and two of the panel
// (6, 7). A short block needs another shape, so each thread remembers the one it has.
thread_local int tile_shape = 0;

void configure(int m) {
  if (m == tile_shape) return;
  struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  const int top = min_of(m, 16), bottom = m > 16 ? m - 16 : 16;
  const int rows[8] = {top, top, bottom, bottom, top, bottom, 16, 16};
  for (int t = 0; t < 8; t++) {
    config.rows[t] = uint8_t(rows[t]);
    config.row_bytes[t] = 64;
  }
  _tile_loadconfig(&config);
  tile_shape = m;
}

void amx_tile(int m, const bf16* a, int64_t lda, const TileArgs<bf16>& t) {
  configure(m);
  constexpr int64_t kPanelRow = kNR * 2 * sizeof(bf16);
  const int64_t a_row = lda * sizeof(bf16), ldc = t.ldc, c_row = ldc * sizeof(float);
  const bf16* a2 = a + 16 * lda;
  const bf16* b = t.panel;
  float* c = t.c;
  if (m > 16) {
    if (t.accumulate) {
      _tile_loadd(0, c, c_row);
      _tile_loadd(1, c + 16, c_row);
      _tile_loadd(2, c + 16 * ldc, c_row);
      _tile_loadd(3, c + 16 * ldc + 16, c_row);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t i = 0; i < t.k; i += 32, b += kNR * 32, a += 32, a2 += 32) {
      if (t.next) fetch<32>(ahead(b, i, t.k, t.next));
      if (t.target.rows) {
        for (int64_t r = i / 8; r < min_of<int64_t>(i / 8 + 4, m); r++)
          fetch_target<64>(t.target, r);
      }
      _tile_loadd(6, b, kPanelRow);
      _tile_loadd(4, a, a_row);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, a2, a_row);
      _tile_dpbf16ps(2, 5, 6);
      _tile_loadd(7, b + 32, kPanelRow);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, c_row);
    _tile_stored(1, c + 16, c_row);
    _tile_stored(2, c + 16 * ldc, c_row);
    _tile_stored(3, c + 16 * ldc + 16, c_row);
  } else {
    if (t.accumulate) {
      _tile_loadd(0, c, c_row);
      _tile_loadd(1, c + 16, c_row);
    } else {
      _tile_zero(0);
      _tile_zero(1);
    }
    for (int64_t i = 0; i < t.k; i += 32, b += kNR * 32, a += 32) {
      if (t.next) fetch<32>(ahead(b, i, t.k, t.next));
      _tile_loadd(4, a, a_row);
      _tile_loadd(6, b, kPanelRow);
      _tile_loadd(7, b + 32, kPanelRow);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, c, c_row);
    _tile_stored(1, c + 16, c_row);
  }
}
#endif

// ---- dot products over unpacked rows ------------------------------------------------------------

// One vector's worth of a dot product of operands P with weights T.
template <class P, class T>
struct Dot {
  static constexpr int kLanes = kW;
  static FUSEBENCH_INLINE Vec a(const P* p) { return load(p); }
  static FUSEBENCH_INLINE Vec a(const P* p, int n) { return load(p, n); }
  static FUSEBENCH_INLINE Vec w(const T* p) { return load(p); }
  static FUSEBENCH_INLINE Vec w(const T* p, int n) { return load(p, n); }
  static FUSEBENCH_INLINE Vec multiply_add(Vec c, Vec a, Vec w) { return c + a * w; }
};
#if FUSEBENCH_ISA_LEVEL >= 3
template <>
struct Dot<bf16, bf16> {
  static constexpr int kLanes = 2 * kW;
  static FUSEBENCH_INLINE __m512i a(const bf16* p) { return _mm512_loadu_si512(p); }
  static FUSEBENCH_INLINE __m512i a(const bf16* p, int n) {
    return _mm512_maskz_loadu_epi16(__mmask32((1ull << n) - 1), p);
  }
  static FUSEBENCH_INLINE __m512i w(const bf16* p) { return a(p); }
  static FUSEBENCH_INLINE __m512i w(const bf16* p, int n) { return a(p, n); }
  static FUSEBENCH_INLINE Vec multiply_add(Vec c, __m512i a, __m512i w) {
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)w);
  }
};
#endif

// M rows of a against N rows of w, N streams that are prefetched N rows ahead.
template <int M, int N, class P, class T>
FUSEBENCH_INLINE void dot_block(const P* a, int64_t lda, const T* w, int64_t ldw, int64_t k,
                                float* c, int64_t ldc) {
  using D = Dot<P, T>;
  Vec acc[M][N];
#pragma GCC unroll 8
  for (int i = 0; i < M; i++) {
#pragma GCC unroll 8
    for (int j = 0; j < N; j++) acc[i][j] = Vec{};
  }
  // Narrow vectors have long chains of sums: they are cut, as tile() cuts its own.
  constexpr int64_t kCut = kW == 4 ? 32 * kW : INT64_MAX;
  Vec total[M][N] = {};
  const auto cut = [&]() FUSEBENCH_LAMBDA {
#pragma GCC unroll 8
    for (int i = 0; i < M; i++) {
#pragma GCC unroll 8
      for (int j = 0; j < N; j++) {
        total[i][j] += acc[i][j];
        acc[i][j] = Vec{};
      }
    }
  };
  int64_t x = 0;
  for (; x + D::kLanes <= k; x += D::kLanes) {
    decltype(D::a(a)) av[M];
#pragma GCC unroll 8
    for (int i = 0; i < M; i++) av[i] = D::a(a + i * lda + x);
#pragma GCC unroll 8
    for (int j = 0; j < N; j++) {
      __builtin_prefetch(w + (N + j) * ldw + x, 0, 2);
      const auto wv = D::w(w + j * ldw + x);
#pragma GCC unroll 8
      for (int i = 0; i < M; i++) acc[i][j] = D::multiply_add(acc[i][j], av[i], wv);
    }
    if (kW == 4 && x % kCut == kCut - kW) cut();
  }
  if (x < k) {
    const int n = int(k - x);
#pragma GCC unroll 8
    for (int j = 0; j < N; j++) {
      const auto wv = D::w(w + j * ldw + x, n);
#pragma GCC unroll 8
      for (int i = 0; i < M; i++)
        acc[i][j] = D::multiply_add(acc[i][j], D::a(a + i * lda + x, n), wv);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < M; i++) {
#pragma GCC unroll 8
    for (int j = 0; j < N; j++) c[i * ldc + j] = sum(kW == 4 ? total[i][j] + acc[i][j] : acc[i][j]);
  }
}

template <int M, class P, class T>
__attribute__((noinline)) void dot_strip(const P* a, int64_t lda, const T* w, int64_t ldw, int n,
                                         int64_t k, float* c, int64_t ldc) {
  // As many accumulators as hide the latency of the dot product, within the register file.
  constexpr int N = FUSEBENCH_ISA_LEVEL >= 2 ? (M == 1 ? 8 : 4) : (M == 1 ? 4 : 2);
  int j = 0;
  for (; j + N <= n; j += N) dot_block<M, N>(a, lda, w + j * ldw, ldw, k, c + j, ldc);
  for (; j < n; j++) dot_block<M, 1>(a, lda, w + j * ldw, ldw, k, c + j, ldc);
}

template <class P, class T>
FUSEBENCH_INLINE void dot_rows_of(int m, const P* a, int64_t lda, const T* w, int64_t ldw, int n,
                                  int64_t k, float* c, int64_t ldc) {
  int i = 0;
  for (; i + 4 <= m; i += 4) dot_strip<4>(a + i * lda, lda, w, ldw, n, k, c + i * ldc, ldc);
  if (i + 2 <= m) {
    dot_strip<2>(a + i * lda, lda, w, ldw, n, k, c + i * ldc, ldc);
    i += 2;
  }
  if (i < m) dot_strip<1>(a + i * lda, lda, w, ldw, n, k, c + i * ldc, ldc);
}

#if FUSEBENCH_ISA_LEVEL >= 4
// Three rows and more: bf16 dot products would be slower than the memory. Rows of w are tiles as
// they are; a, which is small, takes the packed side, so the result comes transposed. Of c the
// columns [0, n / 16 * 16) are done.
void amx_dot_rows(int m, const bf16* a, int64_t lda, const bf16* w, int64_t ldw, int n, int64_t k,
                  float* c, int64_t ldc) {
  constexpr int64_t kBlock = 512;  // of k: the packed part of a stays in the first-level cache
  alignas(64) bf16 packed[kBlock * kNR];
  alignas(64) float result[2][16 * 16];
  configure(32);
  for (int64_t k0 = 0; k0 < k; k0 += kBlock) {
    const int64_t kn = min_of(kBlock, k - k0);
    pack_columns(a + k0, lda, m, kn, packed);
    for (int j = 0; j + 16 <= n; j += 32) {
      const bool two = j + 32 <= n;
      const bf16* top = w + j * ldw + k0;
      const bf16* bottom = two ? top + 16 * ldw : top;
      _tile_zero(0);
      _tile_zero(2);
      for (int64_t i = 0; i < kn; i += 32) {
        for (int r = 0; r < 32 && j + 32 + r < n; r++)
          __builtin_prefetch(top + (32 + r) * ldw + i, 0, 2);
        _tile_loadd(6, packed + i * kNR, kNR * 2 * sizeof(bf16));
        _tile_loadd(4, top + i, ldw * sizeof(bf16));
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, bottom + i, ldw * sizeof(bf16));
        _tile_dpbf16ps(2, 5, 6);
      }
      _tile_stored(0, result[0], 64);
      _tile_stored(2, result[1], 64);
      for (int half = 0; half < (two ? 2 : 1); half++) {
        Vec rows[kW];
        for (int r = 0; r < kW; r++) rows[r] = load(result[half] + r * 16);
        transpose(rows);
        for (int r = 0; r < m; r++) {
          float* out = c + r * ldc + j + half * 16;
          store(out, k0 > 0 ? load(out) + rows[r] : rows[r]);
        }
      }
    }
  }
}
#endif

}  // namespace

void tile(int m, const float* a, const TileArgs<float>& args) {
  tile_of(m, Left<float, kLeftRows>{a}, args);
}
void tile_columns(int m, const float* a, const TileArgs<float>& args) {
  tile_of(m, Left<float, kNR>{a}, args);
}

void dot_rows(int m, const float* a, int64_t lda, const float* w, int64_t ldw, int n, int64_t k,
              float* c, int64_t ldc) {
  dot_rows_of(m, a, lda, w, ldw, n, k, c, ldc);
}
void dot_rows(int m, const Operand<bf16>* a, int64_t lda, const bf16* w, int64_t ldw, int n,
              int64_t k, float* c, int64_t ldc) {
#if FUSEBENCH_ISA_LEVEL >= 4
  if (m >= 3 && n >= 16 && k % 32 == 0) {
    for (int i = 0; i < m; i += 16)
      amx_dot_rows(min_of(m - i, 16), a + i * lda, lda, w, ldw, n, k, c + i * ldc, ldc);
    const int done = n / 16 * 16;
    w += done * ldw;
    c += done;
    n -= done;
  }
#endif
  dot_rows_of(m, a, lda, w, ldw, n, k, c, ldc);
}

#if FUSEBENCH_ISA_LEVEL >= 4
void tile_rows(int m, const bf16* a, int64_t lda, const TileArgs<bf16>& args) {
  amx_tile(m, a, lda, args);
}
#elif FUSEBENCH_ISA_LEVEL == 3
void tile(int m, const bf16* a, const TileArgs<bf16>& args) {
  tile_of(m, Left<bf16, kLeftRows>{a}, args);
}
void tile_columns(int m, const bf16* a, const TileArgs<bf16>& args) {
  tile_of(m, Left<bf16, kNR>{a}, args);
}
#endif

#if FUSEBENCH_ISA_LEVEL >= 4
TileScope::~TileScope() {
  if (tile_shape != 0) _tile_release();
  tile_shape = 0;
}
#else
TileScope::~TileScope() = default;
#endif

}  // namespace FUSEBENCH_ISA
}  // namespace fusebench
