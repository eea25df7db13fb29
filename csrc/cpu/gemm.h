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
constexpr double kMacsPerCycle = kAmx<Operand<T>> ? 400.0 : 2.0 * kW * kPair<Operand<T>>;

// How many threads a call of so many cycles, and bytes read from beyond the caches, is worth.
inline int workers_for(const Parallel& parallel, double cycles, double bytes) {
  constexpr double kWorthAThread = 10000;  // cycles, several times the cost of waking one
  constexpr double kBytesPerCycle = 10;
  const double threads = max_of(cycles, bytes / kBytesPerCycle) / kWorthAThread;
  return threads < 2 ? 1 : int(min_of<double>(parallel.threads, threads));
}

template <class T>
int gemm_workers(const Parallel& parallel, int64_t m, int64_t n, int64_t k) {
  return workers_for(parallel, double(m) * double(n) * double(k) / kMacsPerCycle<T>,
                     double(n) * double(k) * sizeof(T));
}

template <class T>
struct Gemm {
  using P = Operand<T>;
  LeftLayout<T> left;
  Weight<T> w;
  const P* a = nullptr;
  int64_t lda = 0;  // of rows
  int64_t group;    // columns that an epilogue takes at a time
  int64_t col_step, row_parts = 1;
  // Tiles that share a visit of the weight.
  static constexpr int kTiles = kAmx<P> ? 1 : 2;
  static constexpr int64_t kBlockRows = kTiles * kMR<P>;
  static constexpr int64_t kKBlock = 256;

  // `unit`: the epilogue takes whole groups of so many columns.
  Gemm(const LeftLayout<T>& left_, const Weight<T>& w_, int64_t unit, int workers)
      : left(left_), w(w_) {
    group = unit;
    while (group % kNR != 0) group += unit;
    const int64_t groups = ceil_div(w.columns(), group);
    // A column block's weights share the second-level cache with the rows that pass by; AMX is done
    // with them sooner, so more rows do.
    constexpr int64_t kShare = kAmx<P> ? 4 : 2, kMaxColumns = 512;
    const int64_t cache_bytes = int64_t(second_level_cache()) / kShare;
    const int64_t fitting = cache_bytes / (w.padded_k() * int64_t(sizeof(P)));
    int64_t most = min_of(max_of<int64_t>(fitting, 2 * kNR), kMaxColumns) / group;
    // Two blocks for each worker, so that one that is late can be helped.
    if (workers > 1) most = min_of(most, ceil_div<int64_t>(groups, 2 * workers));
    most = max_of<int64_t>(most, 1);
    // Of the sizes from there down to half of it, the one that leaves the busiest worker the least.
    int64_t least = INT64_MAX;
    for (int64_t step = most; 2 * step >= most; step--) {
      const int64_t n = ceil_div(groups, step), rounds = ceil_div<int64_t>(n, workers);
      const int64_t missing = (n - 1) % workers == 0 ? n * step - groups : 0;
      if (rounds * step - missing < least) {
        least = rounds * step - missing;
        col_step = step * group;
      }
    }
    const int64_t blocks = ceil_div(groups * group, col_step);
    if (blocks < 2 * workers && workers > 1) {
      row_parts = max_of<int64_t>(
          min_of(ceil_div<int64_t>(2 * workers, blocks), left.tiles() / (2 * kTiles)), 1);
    }
  }

  int64_t tasks() const { return ceil_div(w.columns(), col_step) * row_parts; }
  // A row of the result buffer, not a power of two.
  int64_t ldc() const { return col_step + kW; }
  size_t result_bytes() const {
    return round_up<size_t>((left.few ? left.kFewRows : kBlockRows) * ldc() * sizeof(float), 128);
  }
  size_t scratch_bytes() const {
    const int64_t panels = left.few || w.packed ? 0 : col_step / kNR;
    return result_bytes() + panels * w.panel_size() * sizeof(P);
  }

  // epilogue(row, rows, column, columns, c, ldc): c holds packed columns [column, column + columns)
  // of rows [row, row + rows), whole groups; epilogue.target(row, column) is where they will go.
  template <class Epilogue>
  void run(int64_t task, char* scratch, const Epilogue& epilogue) const {
    float* c = reinterpret_cast<float*>(scratch);
    const int64_t c0 = task / row_parts * col_step, c1 = min_of(c0 + col_step, w.columns());
    if (left.few) return multiply_few(c0, c1, c, epilogue);
    const P* b;
    if (w.packed) {
      b = w.packed + c0 / kNR * w.panel_size();
    } else {
      P* own = reinterpret_cast<P*>(scratch + result_bytes());
      for (int64_t column = c0; column < c1; column += kNR)
        w.pack_panel(column, own + (column - c0) / kNR * w.panel_size());
      b = own;
    }
    const int64_t part = task % row_parts, tiles = left.tiles();
    const int64_t t1 = tiles * (part + 1) / row_parts;
    for (int64_t t = tiles * part / row_parts; t < t1; t += kTiles)
      multiply(t, min_of<int64_t>(t + kTiles, t1), c0, c1, b, c, epilogue);
  }

 private:
  template <class Epilogue>
  void multiply_few(int64_t c0, int64_t c1, float* c, const Epilogue& epilogue) const {
    for (int64_t r = 0; r < left.m; r += left.kFewRows) {
      const int rows = int(min_of(left.kFewRows, left.m - r));
      // Columns that are consecutive rows of the weight go together.
      const int64_t run = w.gate_up ? kW : c1 - c0;
      for (int64_t i = c0; i < c1; i += run) {
        dot_rows(rows, a + r * lda, lda, w.rows + w.row(i) * w.k, w.k,
                 w.gate_up ? w.count(i) : int(run), w.k, c + (i - c0), ldc());
      }
      epilogue(r, rows, c0, c1 - c0, c, ldc());
    }
  }

  // Tiles [t0, t1) of the left operand times columns [c0, c1), b their panels.
  template <class Epilogue>
  void multiply(int64_t t0, int64_t t1, int64_t c0, int64_t c1, const P* b, float* c,
                const Epilogue& epilogue) const {
    const int64_t kp = w.padded_k(), top = left.edge(t0), rows = left.edge(t1) - top;
    const int panels = int(ceil_div<int64_t>(c1 - c0, kNR));
    for (int64_t k = 0; k < kp; k += kKBlock) {
      const int64_t kn = min_of<int64_t>(kKBlock, kp - k);
      const bool last = k + kn == kp;
      int64_t done = c0;
      for (int p = 0; p < panels; p++) {
        const P* panel = b + p * w.panel_size() + k * kNR;
        const P* next = p + 1 < panels ? panel + w.panel_size() : b + (last ? 0 : (k + kn) * kNR);
        const int64_t column = c0 + p * kNR;
        for (int64_t i = t0; i < t1; i++) {
          const int64_t row = left.edge(i);
          const int count = int(left.edge(i + 1) - row);
          const TileArgs<P> args{panel,
                                 kn,
                                 c + (row - top) * ldc() + p * kNR,
                                 ldc(),
                                 k > 0,
                                 i + 1 < t1 ? panel : next,
                                 last ? epilogue.target(row, column) : Target{}};
          if constexpr (kLeftPanels<P>) {
            tile(count, a + i * left.panel_size() + k * kLeftRows, args);
          } else {
            tile_rows(count, a + row * lda + k, lda, args);
          }
        }
        // A group is finished while it is in the first-level cache.
        const int64_t end = min_of(column + kNR, c1);
        if (last && ((end - c0) % group == 0 || end == c1)) {
          epilogue(top, rows, done, end - done, c + (done - c0), ldc());
          done = end;
        }
      }
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
  gemm.a = left.data();
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

  Target target(int64_t row, int64_t column) const {
    const int64_t at = row * ldo + column;
    return {reinterpret_cast<const char*>(out + at),
            reinterpret_cast<const char*>(residual ? residual + at : nullptr),
            ldo * int64_t(sizeof(T))};
  }
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
  using P = Operand<T>;
  P* hidden;
  LeftLayout<T> layout;
  const T* b_gate;
  const T* b_up;

  Target target(int64_t row, int64_t column) const {
    const int64_t h = column / kNV;
    const P* at =
        hidden + (layout.in_panels ? layout.tile_of(row) * layout.panel_size() + h * kLeftRows
                                   : row * padded_lda(layout.k) + h);
    const int64_t stride = layout.in_panels ? kNR : padded_lda(layout.k);
    return {reinterpret_cast<const char*>(at), nullptr, stride * int64_t(sizeof(P))};
  }
  void operator()(int64_t row, int64_t rows, int64_t column, int64_t columns, const float* c,
                  int64_t ldc) const {
    const int64_t width = layout.k, first = column / kNV, end = (column + columns) / kNV;
    // The last columns bring the padding with them.
    const int64_t last = end >= width ? layout.padded_k() : end;
    if (!layout.in_panels) {
      for (int64_t r = row; r < row + rows; r++, c += ldc) {
        P* out = hidden + r * padded_lda(width);
        for (int64_t h = first; h < min_of(end, width); h += kW)
          store_lanes(out, h, width, gated(c + (h - first) * kNV, h));
        for (int64_t h = width; h < last; h++) out[h] = P{};
      }
      return;
    }
    if constexpr (kLeftPanels<P>) store_panels(row, rows, first, last, c, ldc);
  }

 private:
  void store_panels(int64_t row, int64_t rows, int64_t first, int64_t last, const float* c,
                    int64_t ldc) const {
    const int64_t width = layout.k, t1 = layout.tile_of(row + rows - 1);
    for (int64_t t = layout.tile_of(row); t <= t1; t++) {
      const int count = int(layout.edge(t + 1) - layout.edge(t));
      P* panel = hidden + t * layout.panel_size();
      for (int64_t h = first; h < last; h += kW) {
        Vec square[kLeftRows] = {};
        const int n = int(max_of<int64_t>(0, min_of<int64_t>(width - h, kW)));
        if (n > 0) {
          for (int r = 0; r < count; r++) square[r] = gated(c + r * ldc + (h - first) * kNV, h);
        }
        store_columns(panel, h, n, square);
      }
      c += count * ldc;
    }
  }

  // kW columns of hidden from h on. Those past the width are zero, as the packed weight's are.
  FUSEBENCH_INLINE Vec gated(const float* c, int64_t h) const {
    Vec gate = load(c), up = load(c + kW);
    if (b_gate) {
      gate += load_lanes(b_gate, h, layout.k);
      up += load_lanes(b_up, h, layout.k);
    }
    return silu<T>(gate) * up;
  }
};

}  // namespace FUSEBENCH_ISA
}  // namespace fusebench
