// qkv_proj: norm(x) @ weight.T + bias, rotated (RoPE) and split into heads, in one parallel region.
#include "gemm.h"
#include "ops.h"

namespace fusebench {
namespace FUSEBENCH_ISA {

namespace {

// Columns come in whole heads: the two halves that a rotation pairs are both here, in float32.
template <class T>
struct SplitHeads {
  const QkvProjArgs& args;

  struct Head {
    T* out;
    int64_t heads, head;
    bool is_v;
    T* row(const QkvProjArgs& args, int64_t row) const {
      const int64_t b = row / args.seq, t = row % args.seq;
      return out + ((b * heads + head) * args.seq + t) * args.head_dim;
    }
  };
  Head head_of(int64_t h) const {
    const bool is_q = h < args.num_heads, is_v = h >= args.num_heads + args.num_kv_heads;
    return {static_cast<T*>(is_q   ? args.q
                            : is_v ? args.value
                                   : args.key),
            is_q ? args.num_heads : args.num_kv_heads,
            is_q ? h : h - args.num_heads - (is_v ? args.num_kv_heads : 0), is_v};
  }

  Target target(int64_t row, int64_t column) const {
    const int64_t d = args.head_dim;
    const T* at = head_of(column / d).row(args, row) + column % d;
    return {reinterpret_cast<const char*>(at), nullptr, d * int64_t(sizeof(T))};
  }
  void operator()(int64_t row, int64_t rows, int64_t column, int64_t columns, const float* c,
                  int64_t ldc) const {
    const int64_t d = args.head_dim;
    for (int64_t h = column / d; h < (column + columns) / d; h++) {
      const Head head = head_of(h);
      const T* bias = args.bias ? static_cast<const T*>(args.bias) + h * d : nullptr;
      for (int64_t r = 0; r < rows; r++) {
        const int64_t t = (row + r) % args.seq;
        const float* in = c + r * ldc + h * d - column;
        T* to = head.row(args, row + r);
        if (args.cos && !head.is_v) {
          rotate(in, bias, args.cos + t * (d / 2), args.sin + t * (d / 2), to);
        } else {
          for (int64_t i = 0; i < d; i += kW) {
            Vec v = load_lanes(in, i, d);
            if (bias) v += load_lanes(bias, i, d);
            store_lanes(to, i, d, v);
          }
        }
      }
    }
  }

  void rotate(const float* in, const T* bias, const float* cos, const float* sin, T* to) const {
    const int64_t half = args.head_dim / 2;
    for (int64_t i = 0; i < half; i += kW) {
      Vec x1 = load_lanes(in, i, half), x2 = load_lanes(in + half, i, half);
      if (bias) {
        x1 += load_lanes(bias, i, half);
        x2 += load_lanes(bias + half, i, half);
      }
      const Vec vc = load_lanes(cos, i, half), vs = load_lanes(sin, i, half);
      store_lanes(to, i, half, x1 * vc - x2 * vs);
      store_lanes(to + half, i, half, x2 * vc + x1 * vs);
    }
  }
};

template <class T>
void run(const QkvProjArgs& args, const Parallel& parallel) {
  const int64_t m = args.batch * args.seq;
  const int64_t n = (args.num_heads + 2 * args.num_kv_heads) * args.head_dim;
  const int workers = gemm_workers<T>(parallel, m, n, args.k);
  const LeftLayout<T> layout(m, args.k, LeftLayout<T>::is_few(m, n, args.packed != nullptr));
  LeftOperand<T> left(args.x, layout, args.prologue, workers);
  Gemm<T> gemm(layout, {args.weight, n, args.k, false, args.packed}, args.head_dim, workers);
  const SplitHeads<T> epilogue{args};
  run_gemm(parallel, workers, left, gemm, epilogue);
}

}  // namespace

void qkv_proj(DType dtype, const QkvProjArgs& args, const Parallel& parallel) {
  dtype == DType::float32 ? run<float>(args, parallel) : run<bf16>(args, parallel);
}

}  // namespace FUSEBENCH_ISA
}  // namespace fusebench
