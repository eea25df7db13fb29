// embedding: out[b, t] = token_weight[tokens[b, t]] + position_weight[start + t], 16 bytes a time.
#include "launch.cuh"
#include "ops.h"
#include "ptx.cuh"
#include "rows.cuh"

namespace fusebench::cuda {
namespace {
constexpr int kRows = 4;  // rows per block, one warp each

template <class T>
KERNEL(32 * kRows, 1)
embedding_kernel(const int64_t* tokens, const T* token_weight, const T* position_weight, T* out,
                 int64_t rows, int tokens_per_row, int channels, int64_t vocabulary, int64_t start,
                 bool aligned) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows + warp_id();
  if (row >= rows) return;
  const int64_t token = ldg(tokens + row);
  // No error can be returned from here without a synchronization: stop the kernel, as torch does.
  if (token < 0 || token >= vocabulary) trap("embedding: token id out of range");
  const T* token_row = token_weight + token * channels;
  const T* position_row =
      position_weight ? position_weight + (start + row % tokens_per_row) * channels : nullptr;
  for (int c = lane_id() * 8; c < channels; c += 256) {
    const int count = channels - c;
    float v[8], position[8] = {};
    load8(token_row + c, count, aligned, v);
    if (position_row) load8(position_row + c, count, aligned, position);
    UNROLL
    for (int e = 0; e < 8; e++) v[e] += position[e];
    store8(out + row * channels + c, count, aligned, v);
  }
}

template <class T>
void run(const EmbeddingArgs& p, void* stream) {
  const auto *token_weight = static_cast<const T*>(p.token_weight),
             *position_weight = static_cast<const T*>(p.position_weight);
  auto* out = static_cast<T*>(p.out);
  const int64_t rows = int64_t{p.batch} * p.tokens_per_row, size = rows * p.channels;
  const bool aligned = p.channels % 8 == 0 && is_aligned16(token_weight) &&
                       is_aligned16(position_weight) && is_aligned16(out);
  launch(embedding_kernel<T>,
         {"embedding", dim3(static_cast<unsigned>(ceil_div(rows, int64_t{kRows}))), 32 * kRows, 0,
          stream},
         {reads(p.tokens, rows), reads(token_weight, p.vocabulary * p.channels),
          reads(position_weight, (p.start + p.tokens_per_row) * p.channels), writes(out, size)},
         p.tokens, token_weight, position_weight, out, rows, p.tokens_per_row, p.channels,
         p.vocabulary, p.start, aligned);
}
}  // namespace

void embedding(const EmbeddingArgs& p, DType dtype, void* stream) {
  dispatch(dtype, [&](auto t) { run<decltype(t)>(p, stream); });
}
}  // namespace fusebench::cuda
