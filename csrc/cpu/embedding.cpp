// embedding: the token's row plus the position's row.
#include "ops.h"
#include "tile.h"

namespace fusebench {
namespace FUSEBENCH_ISA {

namespace {

// True if every token of rows [r0, r1) is in range; stops at the first that is not.
template <class T>
bool copy_rows(const EmbeddingArgs& args, int64_t r0, int64_t r1) {
  const int64_t width = args.width;
  const T* table = static_cast<const T*>(args.token_weight);
  const T* positions = static_cast<const T*>(args.position_weight);
  for (int64_t r = r0; r < r1; r++) {
    const int64_t token = args.tokens[r];
    if (token < 0 || token >= args.vocab) return false;
    const T* row = table + token * width;
    T* out = static_cast<T*>(args.out) + r * width;
    if (positions == nullptr) {
      std::memcpy(out, row, width * sizeof(T));
      continue;
    }
    const T* position = positions + r % args.seq * width;
    int64_t i = 0;
    for (; i + kW <= width; i += kW) store(out + i, load(row + i) + load(position + i));
    if (i < width) {
      const int n = int(width - i);
      store(out + i, load(row + i, n) + load(position + i, n), n);
    }
  }
  return true;
}

template <class T>
int64_t run(const EmbeddingArgs& args, const Parallel& parallel) {
  constexpr int64_t kBytesPerThread = 256 * 1024;  // less is not worth waking a thread for
  const int64_t rows = args.batch * args.seq;
  const int64_t parts =
      max_of<int64_t>(1, min_of<int64_t>(min_of<int64_t>(rows, 4096),
                                         rows * args.width * int64_t(sizeof(T)) / kBytesPerThread));
  bool in_range[4096];
  const int64_t tasks[] = {parts};
  run_phases(parallel, int(min_of<int64_t>(parallel.threads, parts)), tasks,
             [&](int, int64_t task, int) {
               in_range[task] = copy_rows<T>(args, rows * task / parts, rows * (task + 1) / parts);
             });
  for (int64_t task = 0; task < parts; task++) {
    if (in_range[task]) continue;
    for (int64_t r = rows * task / parts;; r++) {
      if (args.tokens[r] < 0 || args.tokens[r] >= args.vocab) return r;
    }
  }
  return -1;
}

}  // namespace

int64_t embedding(DType dtype, const EmbeddingArgs& args, const Parallel& parallel) {
  return dtype == DType::float32 ? run<float>(args, parallel) : run<bf16>(args, parallel);
}

}  // namespace FUSEBENCH_ISA
}  // namespace fusebench
