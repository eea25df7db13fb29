// The Hopper forward of sdpa, for the dispatch in sdpa.cu.
#pragma once
#include "ops.h"

namespace fusebench::cuda {
// Whether the tensors can be described to the copy engine. Says nothing about the GPU.
bool sdpa_sm90_serves(const SdpaArgs&);
void sdpa_sm90(const SdpaArgs&, DType, void* stream);
}  // namespace fusebench::cuda
