// The GEMM of every linear op: out = epilogue(prologue(A[m, k]) @ W[n, k]^T). The prologue rewrites
// values of A before they are multiplied, the epilogue finishes 8 + 8 float32 results of one row in
// registers; both are types. Which loop runs depends on the GPU and on the problem.
#pragma once
#include "gemm_few_rows.cuh"
#include "gemm_sm80.cuh"
#include "gemm_sm90.cuh"

namespace fusebench::cuda {
// `buffers` are the ones the prologue and the epilogue touch.
template <class T, class Prologue, class Epilogue>
void gemm(const char* name, const GemmProblem<T>& g, Prologue prologue, Epilogue epilogue,
          std::vector<Buffer> buffers, void* stream) {
  if (g.m <= kFewRows)
    gemm_few_rows(name, g, prologue, epilogue, std::move(buffers), stream);
  else if (fits_sm90(g, prologue, epilogue))
    gemm_sm90(name, g, prologue, epilogue, std::move(buffers), stream);
  else
    gemm_sm80(name, g, prologue, epilogue, std::move(buffers), stream);
}

// The same behind a norm: statistics first, then the GEMM with the norm in its prologue.
template <class T, class Epilogue>
void norm_gemm(const char* name, const GemmProblem<T>& g, const Norm& norm, Epilogue epilogue,
               std::vector<Buffer> buffers, void* stream) {
  if (norm.kind == NormKind::kNone)
    return gemm(name, g, NoPrologue(), epilogue, std::move(buffers), stream);
  row_stats(g.a, g.m, g.k, norm, stream);
  const auto* stats = static_cast<const float2*>(norm.stats);
  const auto *weight = static_cast<const T*>(norm.weight), *bias = static_cast<const T*>(norm.bias);
  buffers.push_back(reads(stats, g.m));
  buffers.push_back(reads(weight, g.k));
  buffers.push_back(reads(bias, g.k));
  const bool aligned = g.k % 8 == 0 && is_aligned16(weight) && is_aligned16(bias);
  gemm(name, g, NormPrologue<T>{stats, weight, bias, aligned}, epilogue, std::move(buffers),
       stream);
}
}  // namespace fusebench::cuda
