// linear: norm(x) @ weight.T + bias + residual in one parallel region.
#include "gemm.h"
#include "ops.h"

namespace fusebench {
namespace FUSEBENCH_ISA {

namespace {

template <class T>
void run(const LinearArgs& args, const Parallel& parallel) {
  const int workers = gemm_workers<T>(parallel, args.rows, args.n, args.k);
  const bool few = LeftLayout<T>::is_few(args.rows, args.n, args.packed != nullptr);
  const LeftLayout<T> layout(args.rows, args.k, few);
  LeftOperand<T> left(args.x, layout, args.prologue, workers);
  Gemm<T> gemm(layout, {args.weight, args.n, args.k, false, args.packed}, kNR, workers);
  const StoreRows<T> epilogue{static_cast<T*>(args.out), args.n, static_cast<const T*>(args.bias),
                              static_cast<const T*>(args.residual)};
  run_gemm(parallel, workers, left, gemm, epilogue);
}

}  // namespace

void linear(DType dtype, const LinearArgs& args, const Parallel& parallel) {
  dtype == DType::float32 ? run<float>(args, parallel) : run<bf16>(args, parallel);
}

}  // namespace FUSEBENCH_ISA
}  // namespace fusebench
