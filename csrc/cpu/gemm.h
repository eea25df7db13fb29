// The GEMM core of linear, qkv_proj and swiglu_ffn: left operand rows times weight rows, with an
// epilogue on the float32 result.
//
// The work is a grid of tasks, row parts times column blocks. A task takes its columns through a
// block of rows at a time: the tiles of the block go to a float32 buffer that stays in cache, and
// the epilogue turns it into the output. The columns' weights are packed already, or packed here
// once per task, or (a few rows) read as they are.
#pragma once
#include "norm.h"

namespace fusebench {
namespace FUSEBENCH_ISA {

// A weight [n, k]. Its packed columns are its rows in order, or with gate_up (the first half gate
// rows, the second half up rows) panels of kW gate columns and the kW up columns they meet.
template <class T>
struct Weight {
  using P = Operand<T>;
  const T* rows;
  int64_t n, k;
  bool gate_up;
  const P* packed;

  Weight(const void* rows_, int64_t n_, int64_t k_, bool gate_up_, const void* packed_)
      : rows(static_cast<const T*>(rows_)),
        n(n_),
        k(k_),
        gate_up(gate_up_),
        packed(packed_ ? reinterpret_cast<const P*>(static_cast<const char*>(packed_) + kHeader)
                       : nullptr) {}

  static constexpr size_t kHeader = 64;
  int64_t columns() const { return gate_up ? 2 * round_up<int64_t>(n / 2, kW) : n; }
  int64_t padded_k() const { return round_up<int64_t>(k, kKPad<P>); }
  int64_t panel_size() const { return padded_k() * kNR; }
  size_t packed_bytes() const {
    return kHeader + ceil_div<int64_t>(columns(), kNR) * panel_size() * sizeof(P);
  }
  // The kW packed columns from c on (c a multiple of kW with gate_up) are `count` rows from `row`.
  int64_t row(int64_t c) const { return !gate_up ? c : c / kNR * kW + (c / kW % kNV) * (n / 2); }
  int count(int64_t c) const {
    const int64_t left = gate_up ? n / 2 - c / kNR * kW : n - c;
    return int(max_of<int64_t>(0, min_of<int64_t>(left, kW)));
  }
  void pack_panel(int64_t c, P* panel) const {
    for (int v = 0; v < kNV; v++, c += kW) {
      const int count_ = count(c);
      const T* source = count_ > 0 ? rows + row(c) * k : rows;
      pack_columns(source, k, count_, k, panel + v * kW * kPair<P>);
    }
  }
};

// Offsets into one workspace.
struct Layout {
  size_t bytes = 0;
  size_t add(size_t size) {
    const size_t offset = bytes;
    bytes = round_up<size_t>(bytes + size, 128);
    return offset;
  }
};

// Multiply-adds per cycle of one core, roughly: to decide how many threads a call is worth.
template <class T>
constexpr double kMacsPerCycle = kMR<Operand<T>> == 32 ? 400.0 : 2.0 * kW * kPair<Operand<T>>;

template <class T>
int gemm_workers(const Parallel& parallel, int64_t m, int64_t n, int64_t k) {
  constexpr double kWorthAThread = 10000;  // cycles, several times the cost of waking one
  const double compute = double(m) * double(n) * double(k) / kMacsPerCycle<T>;
  const double memory = double(n) * double(k) * sizeof(T) / 10;
  const double threads = max_of(compute, memory) / kWorthAThread;
  return threads < 2 ? 1 : int(min_of<double>(parallel.threads, threads));
}

template <class T>
struct Gemm {
  using P = Operand<T>;
  const P* a;
  int64_t lda, m;
  Weight<T> w;
  int64_t col_step, row_parts;
  bool few;
  static constexpr int64_t kFewRows = kMR<P> == 32 ? 16 : 12;
  static constexpr int64_t kKBlock = 256;
  static constexpr int kTiles = kBlockRows<P> / kMR<P>;

  // `unit`: the epilogue takes whole groups of so many columns.
  Gemm(int64_t m_, const Weight<T>& w_, int64_t unit, int workers)
      : a(nullptr), lda(0), m(m_), w(w_), row_parts(1) {
    const int64_t columns = w.columns();
    few = m <= (w.packed ? 4 : kFewRows) || columns < kNR / 2;
    const int64_t wanted = workers == 1 ? 1 : 3 * workers;
    // A column block's weights and the block of rows share the second-level cache.
    constexpr int64_t kCacheBytes = 512 * 1024, kMaxColumns = 512;
    const int64_t fitting = kCacheBytes / (w.padded_k() * int64_t(sizeof(P)));
    int64_t step =
        min_of(min_of(max_of<int64_t>(fitting, 2 * kNR), kMaxColumns), ceil_div(columns, wanted));
    col_step = max_of<int64_t>(step / unit, 1) * unit;
    const int64_t aligned = round_up<int64_t>(col_step, kNR);
    if (aligned % unit == 0) col_step = aligned;
    const int64_t blocks = ceil_div(columns, col_step);
    if (blocks < 2 * workers && workers > 1) {
      row_parts = max_of<int64_t>(
          min_of(ceil_div<int64_t>(2 * workers, blocks), m / (2 * kBlockRows<P>)), 1);
    }
  }

  int64_t tasks() const { return ceil_div(w.columns(), col_step) * row_parts; }
  // A row of the result buffer: what the panels of a block can cover, not a power of two.
  int64_t ldc() const { return round_up<int64_t>(col_step, kNR) + kNR + kW; }
  size_t result_bytes() const {
    return round_up<size_t>((few ? kFewRows : kBlockRows<P>)*ldc() * sizeof(float), 128);
  }
  size_t scratch_bytes() const {
    const int64_t panels = few || w.packed ? 0 : ceil_div<int64_t>(col_step, kNR);
    return result_bytes() + panels * w.panel_size() * sizeof(P);
  }

  // epilogue(row, rows, column, columns, c, ldc): c holds packed columns [column, column + columns)
  // of rows [row, row + rows).
  template <class Epilogue>
  void run(int64_t task, char* scratch, const Epilogue& epilogue) const {
    float* c = reinterpret_cast<float*>(scratch);
    const int64_t c0 = task / row_parts * col_step, c1 = min_of(c0 + col_step, w.columns());
    const int64_t part = task % row_parts;
    const int64_t r0 = m * part / row_parts, r1 = m * (part + 1) / row_parts;
    if (few) return multiply_few(r0, r1, c0, c1, c, epilogue);
    // The first panel of a packed weight may begin left of the block.
    const int64_t origin = w.packed ? c0 / kNR * kNR : c0;
    const int panels = int(ceil_div<int64_t>(c1 - origin, kNR));
    const P* b = w.packed + origin / kNR * w.panel_size();
    if (!w.packed) {
      P* own = reinterpret_cast<P*>(scratch + result_bytes());
      for (int p = 0; p < panels; p++) w.pack_panel(c0 + p * kNR, own + p * w.panel_size());
      b = own;
    }
    multiply(r0, r1, b, panels, c, [&](int64_t row, int64_t rows) {
      epilogue(row, rows, c0, c1 - c0, c + (c0 - origin), ldc());
    });
  }

 private:
  template <class Epilogue>
  void multiply_few(int64_t r0, int64_t r1, int64_t c0, int64_t c1, float* c,
                    const Epilogue& epilogue) const {
    for (int64_t r = r0; r < r1; r += kFewRows) {
      const int rows = int(min_of(kFewRows, r1 - r));
      // Columns that are consecutive rows of the weight go together.
      const int64_t run = w.gate_up ? kW : c1 - c0;
      for (int64_t i = c0; i < c1; i += run) {
        dot_rows(rows, a + r * lda, lda, w.rows + w.row(i) * w.k, w.k,
                 w.gate_up ? w.count(i) : int(run), w.k, c + (i - c0), ldc());
      }
      epilogue(r, rows, c0, c1 - c0, c, ldc());
    }
  }

  template <class F>
  void multiply(int64_t r0, int64_t r1, const P* b, int panels, float* c, const F& done) const {
    // Tiles of equal height, so that none is too short to hide the latency of its sums.
    const int64_t rows = r1 - r0, tiles = ceil_div<int64_t>(rows, kMR<P>), kp = w.padded_k();
    const auto edge = [&](int64_t tile) { return r0 + rows * tile / tiles; };
    for (int64_t t = 0; t < tiles; t += kTiles) {
      const int64_t t1 = min_of<int64_t>(t + kTiles, tiles), top = edge(t);
      for (int64_t k = 0; k < kp; k += kKBlock) {
        const int64_t kn = min_of<int64_t>(kKBlock, kp - k);
        const int64_t k_next = k + kn < kp ? k + kn : 0;
        for (int p = 0; p < panels; p++) {
          const P* panel = b + p * w.panel_size() + k * kNR;
          const P* next = p + 1 < panels ? panel + w.panel_size() : b + k_next * kNR;
          for (int64_t i = t; i < t1; i++) {
            tile(int(edge(i + 1) - edge(i)), a + edge(i) * lda + k, lda, panel, kn,
                 c + (edge(i) - top) * ldc() + p * kNR, ldc(), k > 0, i + 1 < t1 ? panel : next);
          }
        }
      }
      done(top, edge(t1) - top);
    }
  }
};

// A prologue and one GEMM as one parallel region.
template <class T, class Epilogue>
void run_gemm(const Parallel& parallel, int workers, LeftOperand<T>& left, Gemm<T>& gemm,
              const Epilogue& epilogue) {
  Layout layout;
  const size_t left_at = layout.add(left.bytes()), scratch_at = layout.bytes;
  const size_t scratch_bytes = round_up<size_t>(gemm.scratch_bytes(), 128);
  layout.add(workers * scratch_bytes);
  char* memory = static_cast<char*>(workspace(layout.bytes));
  left.buffer = reinterpret_cast<Operand<T>*>(memory + left_at);
  gemm.a = left.rows();
  gemm.lda = left.lda;
  const int64_t tasks[] = {left.tasks, gemm.tasks()};
  run_phases(parallel, workers, tasks, [&](int phase, int64_t task, int worker) {
    if (phase == 0) return left.run(task);
    gemm.run(task, memory + scratch_at + worker * scratch_bytes, epilogue);
  });
}

// ---- epilogues ----------------------------------------------------------------------------------

// out = c + bias + residual
template <class T>
struct StoreRows {
  T* out;
  int64_t ldo;
  const T* bias;
  const T* residual;

  void operator()(int64_t row, int64_t rows, int64_t column, int64_t columns, const float* c,
                  int64_t ldc) const {
    for (int64_t r = 0; r < rows; r++, c += ldc) {
      const int64_t at = (row + r) * ldo + column;
      if (bias && residual) {
        store_row<true, true>(at, column, columns, c);
      } else if (bias) {
        store_row<true, false>(at, column, columns, c);
      } else if (residual) {
        store_row<false, true>(at, column, columns, c);
      } else {
        store_row<false, false>(at, column, columns, c);
      }
    }
  }

  template <bool kBias, bool kResidual>
  FUSEBENCH_INLINE void store_row(int64_t at, int64_t column, int64_t columns,
                                  const float* c) const {
    int64_t i = 0;
    for (; i + kW <= columns; i += kW) {
      Vec v = load(c + i);
      if (kBias) v += load(bias + column + i);
      if (kResidual) v += load(residual + at + i);
      store(out + at + i, v);
    }
    if (i < columns) {
      const int n = int(columns - i);
      Vec v = load(c + i);
      if (kBias) v += load(bias + column + i, n);
      if (kResidual) v += load(residual + at + i, n);
      store(out + at + i, v, n);
    }
  }
};

// hidden = silu(gate + bias) * (up + bias), as the left operand of the next GEMM
template <class T>
struct SiluMul {
  Operand<T>* hidden;
  int64_t ldh, width;  // width: columns of hidden
  const T* b_gate;
  const T* b_up;

  void operator()(int64_t row, int64_t rows, int64_t column, int64_t columns, const float* c,
                  int64_t ldc) const {
    for (int64_t r = 0; r < rows; r++, c += ldc) {
      Operand<T>* out = hidden + (row + r) * ldh;
      for (int64_t i = 0; i < columns; i += kNR) {
        const int64_t h = (column + i) / kNV;
        Vec gate = load(c + i), up = load(c + i + kW);
        if (b_gate) {
          gate += load_lanes(b_gate, h, width);
          up += load_lanes(b_up, h, width);
        }
        store_lanes(out, h, width, silu<T>(gate) * up);
      }
      if (column + columns >= kNV * width) {
        for (int64_t i = width; i < round_up<int64_t>(width, kKPad<Operand<T>>); i++)
          out[i] = Operand<T>{};
      }
    }
  }
};

}  // namespace FUSEBENCH_ISA
}  // namespace fusebench
