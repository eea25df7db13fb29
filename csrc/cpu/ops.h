// The kernels of one instruction set, as its table lists them.
#pragma once
#include "vec.h"

namespace fusebench {
namespace FUSEBENCH_ISA {

int64_t embedding(DType dtype, const EmbeddingArgs& args, const Parallel& parallel);
void qkv_proj(DType dtype, const QkvProjArgs& args, const Parallel& parallel);
void sdpa(DType dtype, const SdpaArgs& args, const Parallel& parallel);
void linear(DType dtype, const LinearArgs& args, const Parallel& parallel);
void swiglu_ffn(DType dtype, const SwigluFfnArgs& args, const Parallel& parallel);
double peak_flops(DType dtype, double seconds);
double read_bandwidth(size_t bytes, double seconds);

extern const Kernels table;

}  // namespace FUSEBENCH_ISA
}  // namespace fusebench
