// sdpa: scaled dot product attention with GQA. Many queries go through packed keys and values in
// blocks; a few (a decode step) read them as they are, the keys split over the threads.
#include "attention.h"
#include "ops.h"

namespace fusebench {
namespace FUSEBENCH_ISA {

namespace {

template <class T>
struct Heads {
  const SdpaArgs& args;
  const T* q(int64_t b, int64_t h, int64_t t) const { return at(args.q, args.q_stride, b, h, t); }
  const T* k(int64_t b, int64_t h, int64_t t) const { return at(args.k, args.k_stride, b, h, t); }
  const T* v(int64_t b, int64_t h, int64_t t) const { return at(args.v, args.v_stride, b, h, t); }
  T* out(int64_t b, int64_t h, int64_t t) const {
    return static_cast<T*>(args.out) + ((b * args.q_len + t) * args.num_heads + h) * args.head_dim;
  }
  static const T* at(const void* p, const int64_t (&stride)[3], int64_t b, int64_t h, int64_t t) {
    return static_cast<const T*>(p) + b * stride[0] + h * stride[1] + t * stride[2];
  }
};

template <class T>
int sdpa_workers(const SdpaArgs& args, const Parallel& parallel) {
  const double pairs = double(args.batch) * double(args.num_heads) * double(args.q_len) *
                       double(args.kv_len) * (args.causal && args.q_len > 1 ? 0.6 : 1.0);
  const double softmax = pairs * 12 / kW;
  const double compute = 2 * pairs * double(args.head_dim) / kMacsPerCycle<T>;
  return workers_for(parallel, softmax + compute,
                     2.0 * sizeof(T) * double(args.batch) * double(args.num_kv_heads) *
                         double(args.kv_len) * double(args.head_dim));
}

// Many queries: blocks of them against packed keys and values. Where there are enough KV heads for
// all workers, a task is one KV head, packed where its blocks will read it, in the core's own
// cache; else all heads are packed first, and tasks are single blocks.
template <class T>
struct Blocks {
  using P = Operand<T>;
  using Block = AttentionBlock<T>;
  const SdpaArgs& args;
  const Heads<T> heads{args};
  const int64_t d = args.head_dim, group = args.num_heads / args.num_kv_heads;
  const int64_t kv_heads = args.batch * args.num_kv_heads;
  const int64_t packs = ceil_div(args.kv_len, PackedHead<T>::kPackKeys);
  const int64_t blocks = ceil_div(args.q_len, Block::kRows);
  const size_t k_bytes = round_up<size_t>(PackedHead<T>::k_size(d, args.kv_len) * sizeof(P), 128);
  const size_t v_bytes = round_up<size_t>(PackedHead<T>::v_size(d, args.kv_len) * sizeof(P), 128);
  const size_t scratch_bytes = round_up<size_t>(Block::scratch_bytes(d), 128);

  void run(const Parallel& parallel) const {
    const int workers = sdpa_workers<T>(args, parallel);
    const bool by_head = kv_heads % workers == 0 || kv_heads >= 4 * workers;
    const int64_t slots = by_head ? workers : kv_heads;
    char* memory =
        static_cast<char*>(workspace(slots * (k_bytes + v_bytes) + workers * scratch_bytes));
    const auto packed = [&](int64_t slot) {
      char* k = memory + slot * (k_bytes + v_bytes);
      return PackedHead<T>{reinterpret_cast<P*>(k), reinterpret_cast<P*>(k + k_bytes), d,
                           args.kv_len};
    };
    const auto scratch = [&](int worker) {
      return memory + slots * (k_bytes + v_bytes) + worker * scratch_bytes;
    };
    if (by_head) {
      const int64_t tasks[] = {kv_heads};
      run_phases(parallel, workers, tasks, [&](int, int64_t kv_head, int worker) {
        for (int64_t i = 0; i < packs; i++) pack(packed(worker), kv_head, i);
        for (int64_t i = 0; i < group * blocks; i++)
          attend(packed(worker), kv_head, i, scratch(worker));
      });
      return;
    }
    const int64_t tasks[] = {kv_heads * packs, kv_heads * group * blocks};
    run_phases(parallel, workers, tasks, [&](int phase, int64_t task, int worker) {
      if (phase == 0) return pack(packed(task / packs), task / packs, task % packs);
      const int64_t kv_head = task / (group * blocks);
      attend(packed(kv_head), kv_head, task % (group * blocks), scratch(worker));
    });
  }

 private:
  void pack(const PackedHead<T>& head, int64_t kv_head, int64_t part) const {
    const int64_t b = kv_head / args.num_kv_heads, h = kv_head % args.num_kv_heads;
    const int64_t j0 = part * head.kPackKeys;
    head.pack(heads.k(b, h, 0), args.k_stride[2], heads.v(b, h, 0), args.v_stride[2], j0,
              min_of(j0 + head.kPackKeys, args.kv_len));
  }

  // Block `task` of the queries of a KV head. The last blocks see the most keys and come first, so
  // that short ones fill the gaps.
  void attend(const PackedHead<T>& head, int64_t kv_head, int64_t task, char* scratch) const {
    const int64_t b = kv_head / args.num_kv_heads;
    const int64_t h = kv_head % args.num_kv_heads * group + task / blocks;
    const int64_t block = blocks - 1 - task % blocks;
    const int64_t t0 = args.q_len * block / blocks, t1 = args.q_len * (block + 1) / blocks;
    const int64_t limit = args.causal ? t0 + args.kv_len - args.q_len + 1 : args.kv_len;
    Block(scratch, d)
        .run(heads.q(b, h, t0), args.q_stride[2], int(t1 - t0), head, limit, args.scale,
             heads.out(b, h, t0), args.num_heads * d);
  }
};

// out[row, d] = sum over keys of probs[row, key] * v[key], R rows at a time
template <int R, class T>
void weigh_values(const float* probs, int64_t ldp, const T* v, int64_t stride, int64_t keys,
                  int64_t d, float* out, int64_t ldo) {
  constexpr int kVectors = FUSEBENCH_ISA_LEVEL >= 2 ? 4 : 2;
  int64_t i = 0;
  for (; i + kVectors * kW <= d; i += kVectors * kW) {
    Vec acc[R][kVectors] = {};
    for (int64_t j = 0; j < keys; j++) {
#pragma GCC unroll 4
      for (int x = 0; x < kVectors; x++) {
        const Vec value = load(v + j * stride + i + x * kW);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) acc[r][x] += value * probs[r * ldp + j];
      }
    }
    for (int r = 0; r < R; r++) {
      for (int x = 0; x < kVectors; x++) store(out + r * ldo + i + x * kW, acc[r][x]);
    }
  }
  for (; i < d; i += kW) {
    Vec acc[R] = {};
    for (int64_t j = 0; j < keys; j++) {
      const Vec value = load_lanes(v + j * stride, i, d);
      for (int r = 0; r < R; r++) acc[r] += value * probs[r * ldp + j];
    }
    for (int r = 0; r < R; r++) store(out + r * ldo + i, acc[r]);
  }
}

// scores [n] become 2^(scores * to_log2 - top), zeros in [n, size); total is their sum.
template <class T>
void softmax(float* scores, int64_t n, int64_t size, float to_log2, float& top, float& total) {
  const auto scaled = [&](int64_t j, float fill) FUSEBENCH_LAMBDA {
    const Vec v = load(scores + j) * to_log2;
    return n - j >= kW ? v : first_lanes(v, int(n - j), fill);
  };
  Vec highest = set1(-__builtin_inff()), sums = {};
  for (int64_t j = 0; j < n; j += kW) highest = max_of(highest, scaled(j, -__builtin_inff()));
  top = max_lane(highest);
  for (int64_t j = 0; j < n; j += kW) {
    const Vec p = exp2<T>(scaled(j, -__builtin_inff()) - top);
    sums += p;
    store(scores + j, p);
  }
  for (int64_t j = round_up<int64_t>(n, kW); j < size; j += kW) store(scores + j, Vec{});
  total = sum(sums);
}

// The queries of one KV head, num_heads / num_kv_heads * q_len rows, share its keys.
template <class T>
void run_few(const SdpaArgs& args, const Parallel& parallel) {
  using P = Operand<T>;
  const Heads<T> heads{args};
  const int64_t d = args.head_dim, group = args.num_heads / args.num_kv_heads;
  const int64_t rows = group * args.q_len, kv_heads = args.batch * args.num_kv_heads;
  const int workers = sdpa_workers<T>(args, parallel);
  constexpr int64_t kMinSplit = 128;
  const int64_t splits =
      max_of<int64_t>(1, min_of(ceil_div<int64_t>(2 * workers, kv_heads), args.kv_len / kMinSplit));
  const int64_t keys = ceil_div(args.kv_len, splits), lds = round_up<int64_t>(keys, kW) + kW;
  const int64_t ldq = padded_lda(d), part_row = round_up<int64_t>(d, kW) + kW;

  Layout layout;
  const size_t part_at = layout.add(kv_heads * splits * rows * part_row * sizeof(float));
  const size_t scratch_at = layout.bytes;
  const size_t q_bytes = round_up<size_t>(rows * ldq * sizeof(P), 128);
  const size_t scratch_bytes = round_up<size_t>(q_bytes + rows * lds * sizeof(float), 128);
  layout.add(workers * scratch_bytes);
  char* memory = static_cast<char*>(workspace(layout.bytes));
  // A part of a row: its unnormalised output, then its maximum and its sum.
  const auto part = [&](int64_t kv_head, int64_t split, int64_t row) {
    return reinterpret_cast<float*>(memory + part_at) +
           ((kv_head * splits + split) * rows + row) * part_row;
  };
  const int64_t max_at = part_row - 2, sum_at = part_row - 1;
  const float to_log2 = args.scale * 1.44269504f;

  const int64_t tasks[] = {kv_heads * splits, kv_heads};
  run_phases(parallel, workers, tasks, [&](int phase, int64_t task, int worker) {
    const int64_t kv_head = phase == 0 ? task / splits : task;
    const int64_t b = kv_head / args.num_kv_heads, kv = kv_head % args.num_kv_heads;
    if (phase == 0) {
      const int64_t split = task % splits;
      const int64_t j0 = min_of(split * keys, args.kv_len), j1 = min_of(j0 + keys, args.kv_len);
      P* q = reinterpret_cast<P*>(memory + scratch_at + worker * scratch_bytes);
      float* s = reinterpret_cast<float*>(reinterpret_cast<char*>(q) + q_bytes);
      const Prologue copy{Norm::none, nullptr, nullptr, 0.f};
      for (int64_t r = 0; r < rows; r++)
        prepare_row(heads.q(b, kv * group + r / args.q_len, r % args.q_len), d, copy, q + r * ldq);
      dot_rows(int(rows), q, ldq, heads.k(b, kv, j0), args.k_stride[2], int(j1 - j0), d, s, lds);
      for (int64_t r = 0; r < rows; r++) {
        const int64_t last = args.kv_len - args.q_len + r % args.q_len + 1;
        const int64_t n = max_of<int64_t>(0, (args.causal ? min_of(last, j1) : j1) - j0);
        float* out = part(kv_head, split, r);
        softmax<T>(s + r * lds, n, j1 - j0, to_log2, out[max_at], out[sum_at]);
      }
      const T* v = heads.v(b, kv, j0);
      int64_t r = 0;
      for (; r + 4 <= rows; r += 4) {
        weigh_values<4>(s + r * lds, lds, v, args.v_stride[2], j1 - j0, d, part(kv_head, split, r),
                        part_row);
      }
      if (r + 2 <= rows) {
        weigh_values<2>(s + r * lds, lds, v, args.v_stride[2], j1 - j0, d, part(kv_head, split, r),
                        part_row);
        r += 2;
      }
      if (r < rows) {
        weigh_values<1>(s + r * lds, lds, v, args.v_stride[2], j1 - j0, d, part(kv_head, split, r),
                        part_row);
      }
      return;
    }
    for (int64_t r = 0; r < rows; r++) {
      float highest = part(kv_head, 0, r)[max_at];
      for (int64_t s = 1; s < splits; s++) highest = max_of(highest, part(kv_head, s, r)[max_at]);
      float total = 0.f;
      for (int64_t s = 0; s < splits; s++) {
        float* p = part(kv_head, s, r);
        p[max_at] = exp2<float>(set1(p[max_at] - highest))[0];
        total += p[sum_at] * p[max_at];
      }
      T* out = heads.out(b, kv * group + r / args.q_len, r % args.q_len);
      for (int64_t i = 0; i < d; i += kW) {
        Vec v = {};
        for (int64_t s = 0; s < splits; s++) {
          const float* p = part(kv_head, s, r);
          v += load_lanes(p, i, d) * (p[max_at] / total);
        }
        store_lanes(out, i, d, v);
      }
    }
  });
}

template <class T>
void run(const SdpaArgs& args, const Parallel& parallel) {
  constexpr int64_t kFewRows = 16, kFewQueries = 8;
  const int64_t rows = args.num_heads / args.num_kv_heads * args.q_len;
  if (args.q_len == 1 || (args.q_len <= kFewQueries && rows <= kFewRows)) {
    run_few<T>(args, parallel);
  } else {
    Blocks<T>{args}.run(parallel);
  }
}

}  // namespace

void sdpa(DType dtype, const SdpaArgs& args, const Parallel& parallel) {
  dtype == DType::float32 ? run<float>(args, parallel) : run<bf16>(args, parallel);
}

}  // namespace FUSEBENCH_ISA
}  // namespace fusebench
