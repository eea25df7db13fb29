// Binding of fusebench::embedding_cuda; see python/fusebench/ops/embedding.py.
#include "cuda.h"

namespace fusebench::cuda {
namespace {
Tensor embedding_cuda(const Tensor& tokens, const Tensor& token_weight,
                      const MaybeTensor& position_weight, int64_t start) {
  const CudaCall call("embedding", "token_weight", token_weight);
  call.check_rank("tokens", tokens, 2, "[B, T]");
  call.check_rank("token_weight", token_weight, 2, "[V, C]");
  const int64_t batch = tokens.size(0), length = tokens.size(1);
  const int64_t vocabulary = token_weight.size(0), channels = token_weight.size(1);
  const Tensor ids = call.operand("tokens", tokens, {batch, length}, ScalarType::Long);
  const Tensor weight = call.operand("token_weight", token_weight, {vocabulary, channels});
  MaybeTensor positions;
  if (position_weight) {
    call.check_rank("position_weight", *position_weight, 2, "[P, C]");
    positions =
        call.operand("position_weight", *position_weight, {position_weight->size(0), channels});
    call.require(start >= 0 && start + length <= positions->size(0), "start", std::to_string(start),
                 "0 to " + std::to_string(positions->size(0) - length) + " (P - T)");
  }
  Tensor out = call.empty({batch, length, channels});
  if (out.numel() == 0) return out;
  embedding({static_cast<const int64_t*>(ids.const_data_ptr()), weight.const_data_ptr(),
             call.data(positions), out.data_ptr(), call.size("tokens", batch),
             call.size("tokens", length), call.size("token_weight", channels), vocabulary, start},
            call.dtype(), call.stream());
  return out;
}
}  // namespace
}  // namespace fusebench::cuda

STABLE_TORCH_LIBRARY_IMPL(fusebench, FUSEBENCH_CUDA_KEY, m) {
  m.impl("embedding_cuda", TORCH_BOX(&fusebench::cuda::embedding_cuda));
}
