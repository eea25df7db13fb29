// fusebench::embedding_cpp
#include "cpu.h"

namespace fusebench {
namespace {

Tensor embedding(const Tensor& tokens, const Tensor& token_weight,
                 const OptionalTensor& position_weight, int64_t start) {
  const char* op = "embedding";
  const DType dtype = dtype_of(op, "token_weight", token_weight);
  const ScalarType type = token_weight.scalar_type();
  const Tensor ids = want(op, "tokens", tokens, ScalarType::Long, {-1, -1});
  const Tensor table = want(op, "token_weight", token_weight, type, {-1, -1});
  const int64_t batch = ids.size(0), seq = ids.size(1), width = table.size(1);
  const OptionalTensor positions = want(op, "position_weight", position_weight, type, {-1, width});
  if (start < 0) refuse(op, "start", "is " + std::to_string(start), "a position >= 0");
  if (positions && start + seq > positions->size(0)) {
    refuse(op, "tokens", "reaches position " + std::to_string(start + seq - 1),
           "positions below " + std::to_string(positions->size(0)) + " (rows of position_weight)");
  }
  Tensor out = empty(type, {batch, seq, width}, {seq * width, width, 1});
  if (out.numel() == 0) return out;
  const size_t row_bytes = size_t(width) * table.element_size();
  const char* first = static_cast<const char*>(data_of(positions));
  const EmbeddingArgs args{static_cast<const int64_t*>(data_of(ids)),
                           data_of(table),
                           first ? first + start * row_bytes : nullptr,
                           out.mutable_data_ptr(),
                           batch,
                           seq,
                           table.size(0),
                           width};
  const int64_t bad = kernels().embedding(dtype, args, torch_threads());
  if (bad >= 0) {
    refuse(op, "tokens", "holds the id " + std::to_string(args.tokens[bad]),
           "ids in [0, " + std::to_string(args.vocab) + ")");
  }
  return out;
}

}  // namespace
}  // namespace fusebench

STABLE_TORCH_LIBRARY_IMPL(fusebench, CPU, m) {
  m.impl("embedding_cpp", TORCH_BOX(&fusebench::embedding));
}
