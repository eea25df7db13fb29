// This machine's ceilings, per thread: multiply-adds from registers, and reading memory.
#include <time.h>

#include "ops.h"
#include "tile.h"

namespace fusebench {
namespace FUSEBENCH_ISA {

namespace {

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// The best rate of `work` units per call of f, over about `seconds` of bursts: a burst that was
// interrupted measures the interruption.
template <class F>
double best_rate(double work, double seconds, F&& f) {
  double best = 0;
  const double end = now() + seconds;
  do {
    const double start = now();
    f();
    const double rate = work / (now() - start);
    if (rate > best) best = rate;
  } while (now() < end);
  return best;
}

// Keeps the compiler from dropping what leads to v.
template <class V>
FUSEBENCH_INLINE void keep(V& v) {
  asm volatile("" : "+m"(v) : : "memory");
}

constexpr int kChains = 12;  // independent sums: enough to hide the latency of two FMA units
constexpr int kRepeats = 20000;

double float_flops(double seconds) {
  Vec acc[kChains] = {}, a = set1(0.999f), b = set1(1e-3f);
  keep(a);
  keep(b);
  return best_rate(2.0 * kW * kChains * kRepeats, seconds, [&] {
    for (int i = 0; i < kRepeats; i++) {
#pragma GCC unroll 12
      for (int c = 0; c < kChains; c++) acc[c] = acc[c] * a + b;
    }
    keep(acc);
  });
}

#if FUSEBENCH_ISA_LEVEL >= 4
double bf16_flops(double seconds) {
  // The largest tile the GEMM uses, on operands that stay in the first-level cache.
  alignas(64) bf16 a[32 * 32] = {}, b[kNR * 32] = {};
  alignas(64) float c[32 * kNR] = {};
  TileScope tiles;
  tile_rows(32, a, 32, {b, 32, c, kNR, false, b});  // configures the tiles
  _tile_loadd(4, a, 64);
  _tile_loadd(5, a, 64);
  _tile_loadd(6, b, 64);
  _tile_loadd(7, b, 64);
  return best_rate(2.0 * 16 * 16 * 32 * 4 * kRepeats, seconds, [] {
    for (int i = 0; i < kRepeats; i++) {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  });
}
#elif FUSEBENCH_ISA_LEVEL == 3
double bf16_flops(double seconds) {
  Vec acc[kChains] = {};
  __m512i a = _mm512_set1_epi16(0x3c00), b = a;
  keep(a);
  keep(b);
  return best_rate(4.0 * kW * kChains * kRepeats, seconds, [&] {
    for (int i = 0; i < kRepeats; i++) {
#pragma GCC unroll 12
      for (int c = 0; c < kChains; c++) acc[c] = _mm512_dpbf16_ps(acc[c], (__m512bh)a, (__m512bh)b);
    }
    keep(acc);
  });
}
#else
double bf16_flops(double seconds) { return float_flops(seconds); }
#endif

}  // namespace

double peak_flops(DType dtype, double seconds) {
  return dtype == DType::float32 ? float_flops(seconds) : bf16_flops(seconds);
}

double read_bandwidth(size_t bytes, double seconds) {
  constexpr int kStreams = 8;
  const size_t step = kStreams * sizeof(Vec), size = max_of(bytes / step, size_t(1)) * step;
  char* memory = static_cast<char*>(workspace(size));
  std::memset(memory, 0, size);
  // Small buffers are read several times per burst, so that the clock costs nothing.
  const size_t passes = max_of(size_t(1) << 20, size) / size;
  Vec acc[kStreams] = {};
  const double rate = best_rate(double(size) * double(passes), seconds, [&] {
    for (size_t pass = 0; pass < passes; pass++) {
      for (size_t i = 0; i < size; i += step) {
#pragma GCC unroll 8
        for (int s = 0; s < kStreams; s++)
          acc[s] += load(reinterpret_cast<const float*>(memory + i) + s * kW);
      }
    }
    keep(acc);
  });
  return rate;
}

}  // namespace FUSEBENCH_ISA
}  // namespace fusebench
