// The GEMM loops by themselves, on problems that wrap every ring and cut every tile: what the
// mutation tests run, in the simulator only. Compiled against csrc/cuda, or against a copy with one
// line changed.
#include "harness.h"

#include <cmath>
#include <random>

#include "cuda/epilogues.cuh"
#include "cuda/gemm.cuh"

namespace fusebench::test {
namespace {
using cuda::ColumnPairs;
using cuda::GemmProblem;
using cuda::NoPrologue;
using cuda::Norm;
using cuda::NormKind;
using cuda::NormPrologue;
using cuda::RowMajorEpilogue;
using Sm80 = cuda::Tile<64, 64, 32, 2, 1, 3, 1>;
using Sm90 = cuda::TileSm90<128, 3>;
using FewRows = cuda::FewRowsTile<16>;

template <class Tile, bool NORM>
void gemm_case(int m, int n, int k) {
  Array<bf16> a(static_cast<size_t>(m) * k), w(static_cast<size_t>(n) * k), bias(n),
      residual(static_cast<size_t>(m) * n), out(static_cast<size_t>(m) * n), weight(k), shift(k);
  Array<float2> stats(m);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  auto fill = [&](Array<bf16>& x) {
    for (int64_t i = 0; i < x.size(); i++) x[i] = from_float<bf16>(uniform(random));
  };
  fill(a), fill(w), fill(bias), fill(residual), fill(weight), fill(shift);
  for (int i = 0; i < m; i++) stats[i] = {uniform(random), 1 + uniform(random) / 2};
  const GemmProblem<bf16> g{a.data(), w.data(), m, n, k, ColumnPairs::of(n, 64)};
  const RowMajorEpilogue<bf16> epilogue{bias.data(), residual.data(), out.data(), n, n % 8 == 0};
  std::vector<Buffer> buffers{reads(bias.data(), n), reads(residual.data(), residual.size()),
                              writes(out.data(), out.size())};
  auto start = [&](auto prologue) {
    if constexpr (std::is_same<Tile, FewRows>::value)
      cuda::gemm_few_rows("gemm", g, prologue, epilogue, buffers, nullptr);
    else if constexpr (std::is_same<Tile, Sm90>::value)
      cuda::launch_gemm_sm90<bf16, Tile>("gemm", g, prologue, epilogue, buffers, nullptr);
    else
      cuda::launch_gemm_sm80<bf16, Tile>("gemm", g, prologue, epilogue, buffers, nullptr);
  };
  if constexpr (NORM) {
    for (auto* x : {&weight, &shift}) buffers.push_back(reads(x->data(), k));
    buffers.push_back(reads(stats.data(), m));
    start(NormPrologue<bf16>{stats.data(), weight.data(), shift.data(), k % 8 == 0});
  } else {
    start(NoPrologue());
  }
  for (int i = 0; i < m; i++)
    for (int j = 0; j < n; j++) {
      double sum = to_float(bias[j]) + to_float(residual[static_cast<size_t>(i) * n + j]);
      double size = std::fabs(sum);
      for (int x = 0; x < k; x++) {
        float v = to_float(a[static_cast<size_t>(i) * k + x]);
        if (NORM)
          v = to_float(from_float<bf16>((v - stats[i].x) * stats[i].y * to_float(weight[x]) +
                                        to_float(shift[x])));
        const double p = static_cast<double>(v) * to_float(w[static_cast<size_t>(j) * k + x]);
        sum += p, size += std::fabs(p);
      }
      // One rounding of the result, float32 sums, and a rounding that may differ in the norm.
      const double error = std::fabs(to_float(out[static_cast<size_t>(i) * n + j]) - sum);
      if (!(error <= std::fabs(sum) / 256 + size * (NORM ? 1e-5 : 1e-6)))
        wrong("out[" + std::to_string(i) + ", " + std::to_string(j) + "]");
    }
}

struct Register {
  Register() {
    sim::options().multiprocessors = 2;  // blocks walk over several tiles
    sim::options().max_steps = 3000000;  // a mutant may turn in circles
#ifndef NO_FEW_ROWS
    cases().push_back({"few_rows", [] { gemm_case<FewRows, false>(11, 72, 1112); }});
    cases().push_back({"few_rows_norm", [] { gemm_case<FewRows, true>(13, 36, 616); }});
#endif
#ifndef NO_SM80
    cases().push_back({"sm80", [] { gemm_case<Sm80, false>(150, 72, 232); }});
    cases().push_back({"sm80_norm", [] { gemm_case<Sm80, true>(70, 136, 168); }});
#endif
#ifndef NO_SM90
    cases().push_back({"sm90", [] { gemm_case<Sm90, false>(300, 200, 328); }});
    cases().push_back({"sm90_norm", [] { gemm_case<Sm90, true>(200, 264, 456); }});
#endif
  }
} registered;
}  // namespace
}  // namespace fusebench::test

int main(int argc, char** argv) { return fusebench::test::main_of(argc, argv); }
