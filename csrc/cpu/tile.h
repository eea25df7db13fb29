// The innermost loops, out of line and compiled once per instruction set: the register tile over
// a packed panel, dot products over rows as they are, and the packing.
//
// A panel is kNR columns of the right-hand operand: [k / pair][kNR][pair] with pair = 2 for bf16
// (what one bf16 dot product and one AMX tile row take) and 1 for float, so that the tile reads it
// as one forward stream. k is padded with zeros to a multiple of kKPad.
#pragma once
#include "vec.h"

namespace fusebench {
namespace FUSEBENCH_ISA {

// What a GEMM multiplies: bf16 where the instruction set can, float elsewhere.
template <class T>
struct OperandOf {
  using type = float;
};
#if FUSEBENCH_ISA_LEVEL >= 3
template <>
struct OperandOf<bf16> {
  using type = bf16;
};
#endif
template <class T>
using Operand = typename OperandOf<T>::type;

constexpr int kNV = 2;         // vectors across a panel: one of gate and one of up columns
constexpr int kNR = kNV * kW;  // columns of a panel
template <class P>
constexpr int kPair = sizeof(P) == 2 ? 2 : 1;
template <class P>
constexpr int kKPad = sizeof(P) == 2 ? 32 : 1;
// Rows of the register tile: accumulators, a panel row and a broadcast fill the register file.
constexpr int kTileRows = FUSEBENCH_ISA_LEVEL >= 2 ? 14 : 6;
template <class P>
constexpr bool kAmx = FUSEBENCH_ISA_LEVEL >= 4 && sizeof(P) == 2;
template <class P>
constexpr int kMR = kAmx<P> ? 32 : kTileRows;
// Left operands come in panels too, of up to kMR rows: [k / pair][kLeftRows][pair], so that the
// broadcasts of a step share a cache line. AMX loads rows as they are, and is better off so.
template <class P>
constexpr bool kLeftPanels = !kAmx<P>;
constexpr int kLeftRows = round_up(kTileRows, kW);

// Where the rows that will take a result lie, and others that will be read with them: 128 bytes
// each, or half of them for bf16. Stores that miss the cache would stall the core, so a tile asks
// for the lines while it multiplies.
struct Target {
  const char* rows = nullptr;
  const char* also = nullptr;
  int64_t stride = 0;  // bytes
};

// c[m, kNR] = (accumulate ? c : 0) + a[m, k] * panel, 1 <= m <= kMR, k a multiple of kKPad.
// `next` is the panel (rows) that will be read after this one: it is fetched ahead; null if the
// panel is small enough to be in cache.
// tile() takes a left panel, tile_columns() columns of a panel of kNR, and with AMX tile_rows()
// rows as they are instead.
template <class P>
struct TileArgs {
  const P* panel;
  int64_t k;
  float* c;
  int64_t ldc;
  bool accumulate;
  const P* next;
  Target target = {};
};
void tile(int m, const float* a, const TileArgs<float>& args);
void tile_columns(int m, const float* a, const TileArgs<float>& args);
#if FUSEBENCH_ISA_LEVEL == 3
void tile(int m, const bf16* a, const TileArgs<bf16>& args);
void tile_columns(int m, const bf16* a, const TileArgs<bf16>& args);
#elif FUSEBENCH_ISA_LEVEL >= 4
void tile_rows(int m, const bf16* a, int64_t lda, const TileArgs<bf16>& args);
#endif

// c[m, n] = a[m, k] * w[n, k]^T without packing: for a few rows, which wait for w's memory.
// a may be read up to k rounded up to kKPad.
void dot_rows(int m, const float* a, int64_t lda, const float* w, int64_t ldw, int n, int64_t k,
              float* c, int64_t ldc);
void dot_rows(int m, const Operand<bf16>* a, int64_t lda, const bf16* w, int64_t ldw, int n,
              int64_t k, float* c, int64_t ldc);

// Rows of w become kW columns of a panel (half of it); the columns past n are zero.
void pack_columns(const float* w, int64_t ldw, int n, int64_t k, float* panel);
void pack_columns(const bf16* w, int64_t ldw, int n, int64_t k, Operand<bf16>* panel);
// Rows of w become rows of a panel: its columns [0, n), n <= kNR, and k rows, padded to kp rows.
void pack_rows(const float* w, int64_t ldw, int n, int64_t k, int64_t kp, float* panel);
void pack_rows(const bf16* w, int64_t ldw, int n, int64_t k, int64_t kp, Operand<bf16>* panel);

// Lives as long as a thread may call tile(): gives the AMX tiles back at the end, so that others
// find them unconfigured and context switches stay cheap.
struct TileScope {
  TileScope() = default;
  ~TileScope();
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// Runs f(phase, task, worker) for every task of every phase, in one parallel region.
template <int N, class F>
void run_phases(const Parallel& parallel, int workers, const int64_t (&tasks)[N], F&& f) {
  if (workers <= 1) {
    TileScope tiles;
    for (int p = 0; p < N; p++) {
      for (int64_t i = 0; i < tasks[p]; i++) f(p, i, 0);
    }
    return;
  }
  struct Job {
    Phases phases;
    F& f;
  } job{{workers, tasks, N}, f};
  parallel.run(
      workers,
      [](void* context, int worker) {
        Job& job = *static_cast<Job*>(context);
        TileScope tiles;
        for (int p = 0; p < N; p++) {
          for (int64_t i; (i = job.phases.claim(p, worker)) >= 0; job.phases.done(p)) {
            job.f(p, i, worker);
          }
          if (p + 1 < N) job.phases.wait(p);
        }
      },
      &job);
}

}  // namespace FUSEBENCH_ISA
}  // namespace fusebench
