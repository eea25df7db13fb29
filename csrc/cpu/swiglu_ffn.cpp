// swiglu_ffn: (silu(n @ Wg.T) * (n @ Wu.T)) @ Wd.T + residual with n = norm(x), in one parallel
// region of three phases.
#include "gemm.h"
#include "ops.h"

namespace fusebench {
namespace FUSEBENCH_ISA {

namespace {

template <class T>
void run(const SwigluFfnArgs& args, const Parallel& parallel) {
  using P = Operand<T>;
  const int workers = gemm_workers<T>(parallel, args.rows, 3 * args.hidden, args.k);
  // One rule for both products: what the first writes is what the second reads.
  const bool packed = args.packed_gate_up != nullptr && args.packed_down != nullptr;
  const int64_t columns = min_of(2 * args.hidden, args.n);
  const bool few = LeftLayout<T>::is_few(args.rows, columns, packed);
  const LeftLayout<T> layout(args.rows, args.k, few);
  const LeftLayout<T> hidden_layout(args.rows, args.hidden, few);
  LeftOperand<T> left(args.x, layout, args.prologue, workers);
  Gemm<T> up(layout, {args.w_gate_up, 2 * args.hidden, args.k, true, args.packed_gate_up}, kNR,
             workers);
  Gemm<T> down(hidden_layout, {args.w_down, args.n, args.hidden, false, args.packed_down}, kNR,
               workers);

  Layout memory_layout;
  const size_t left_at = memory_layout.add(left.bytes());
  const size_t hidden_at = memory_layout.add(hidden_layout.bytes());
  const size_t scratch_at = memory_layout.bytes;
  const size_t scratch_bytes =
      round_up<size_t>(max_of(up.scratch_bytes(), down.scratch_bytes()), 128);
  memory_layout.add(workers * scratch_bytes);
  char* memory = static_cast<char*>(workspace(memory_layout.bytes));
  left.buffer = reinterpret_cast<P*>(memory + left_at);
  P* hidden = reinterpret_cast<P*>(memory + hidden_at);
  up.a = left.data();
  up.lda = left.lda;
  down.a = hidden;
  down.lda = padded_lda(args.hidden);

  const T* b_gate = static_cast<const T*>(args.b_gate_up);
  const SiluMul<T> silu_mul{hidden, hidden_layout, b_gate, b_gate ? b_gate + args.hidden : nullptr};
  const StoreRows<T> store_rows{static_cast<T*>(args.out), args.n,
                                static_cast<const T*>(args.b_down),
                                static_cast<const T*>(args.residual)};
  const int64_t tasks[] = {left.tasks, up.tasks(), down.tasks()};
  run_phases(parallel, workers, tasks, [&](int phase, int64_t task, int worker) {
    char* scratch = memory + scratch_at + worker * scratch_bytes;
    if (phase == 0) return left.run(task);
    if (phase == 1) return up.run(task, scratch, silu_mul);
    down.run(task, scratch, store_rows);
  });
}

}  // namespace

void swiglu_ffn(DType dtype, const SwigluFfnArgs& args, const Parallel& parallel) {
  dtype == DType::float32 ? run<float>(args, parallel) : run<bf16>(args, parallel);
}

}  // namespace FUSEBENCH_ISA
}  // namespace fusebench
