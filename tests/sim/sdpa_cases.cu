// The attention kernels by themselves, on problems that wrap every ring, cut every tile and cross
// the mask: what the mutation tests run, in the simulator only. Compiled against csrc/cuda, or
// against a copy with one line changed; NO_SM80, NO_SM90, NO_BACKWARD leave a family out.
#include "harness.h"

#include <cmath>
#include <random>

#ifndef NO_BACKWARD
#include "cuda/sdpa_backward.cu"
#endif
#ifndef NO_SM90
#include "cuda/sdpa_sm90.cu"
#endif
#ifndef NO_SM80
#include "cuda/sdpa.cu"
#endif

#ifdef NO_SM90
namespace fusebench::cuda {
bool sdpa_sm90_serves(const SdpaArgs&) { return false; }
void sdpa_sm90(const SdpaArgs&, DType, void*) {}
}  // namespace fusebench::cuda
#endif

namespace fusebench::test {
namespace {
struct Shape {
  int heads, kv_heads, q_tokens, k_tokens, head_dim;
  bool causal;
};

// Operands, and what should come of them in float64.
struct Attention {
  Shape s;
  double scale;
  Array<bf16> q, k, v, out;
  Array<float> lse;
  std::vector<double> probability, true_out, size_out, true_lse;

  explicit Attention(const Shape& shape)
      : s(shape),
        scale(1 / std::sqrt(shape.head_dim)),
        q(size(s.heads, s.q_tokens)),
        k(size(s.kv_heads, s.k_tokens)),
        v(size(s.kv_heads, s.k_tokens)),
        out(size(s.heads, s.q_tokens)),
        lse(static_cast<size_t>(s.heads) * s.q_tokens) {
    fill(q, 1), fill(k, 2), fill(v, 3);
    true_out.resize(out.size()), size_out.resize(out.size()), true_lse.resize(lse.size());
    probability.resize(lse.size() * static_cast<size_t>(s.k_tokens));
    for (int row = 0; row < s.heads * s.q_tokens; row++) attend(row);
  }
  size_t size(int heads, int tokens) const {
    return static_cast<size_t>(heads) * tokens * s.head_dim;
  }
  static void fill(Array<bf16>& x, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < x.size(); i++) x[i] = from_float<bf16>(normal(random));
  }
  // The keys and values of the head that a row of q attends to.
  size_t of_kv(int row, int key) const {
    const int head = row / s.q_tokens / (s.heads / s.kv_heads);
    return (static_cast<size_t>(head) * s.k_tokens + key) * s.head_dim;
  }
  static double dot(Array<bf16>& a, size_t i, Array<bf16>& b, size_t j, int n) {
    double sum = 0;
    for (int c = 0; c < n; c++) sum += double{to_float(a[i + c])} * to_float(b[j + c]);
    return sum;
  }
  void attend(int row) {
    const int visible = s.causal ? row % s.q_tokens + s.k_tokens - s.q_tokens + 1 : s.k_tokens;
    const size_t d = static_cast<size_t>(s.head_dim);
    double* p = &probability[static_cast<size_t>(row) * s.k_tokens];
    double sum = 0;
    for (int key = 0; key < visible; key++)
      sum += p[key] = std::exp(scale * dot(q, row * d, k, of_kv(row, key), s.head_dim));
    true_lse[row] = std::log(sum);
    for (int key = 0; key < visible; key++) {
      p[key] /= sum;
      for (size_t c = 0; c < d; c++) {
        const double x = p[key] * to_float(v[of_kv(row, key) + c]);
        true_out[row * d + c] += x, size_out[row * d + c] += std::fabs(x);
      }
    }
  }
  cuda::HeadsView view(Array<bf16>& x, int tokens) const {
    const int64_t d = s.head_dim;
    return {x.data(), x.size(), tokens * d, d};
  }
  cuda::SdpaArgs args(int splits, Array<float>& partial_out, Array<float>& partial_lse) {
    return {view(q, s.q_tokens),
            view(k, s.k_tokens),
            view(v, s.k_tokens),
            view(out, s.q_tokens),
            lse.data(),
            1,
            s.heads,
            s.kv_heads,
            s.q_tokens,
            s.k_tokens,
            s.head_dim,
            s.causal,
            static_cast<float>(scale),
            splits,
            partial_out.data(),
            partial_lse.data()};
  }
};

// Within one rounding of the result and one of every term.
void compare(const char* name, Array<bf16>& got, const std::vector<double>& want,
             const std::vector<double>& size) {
  for (size_t i = 0; i < want.size(); i++)
    if (!(std::fabs(to_float(got[i]) - want[i]) <= std::fabs(want[i]) / 256 + size[i] / 200 + 1e-6))
      wrong(std::string(name) + "[" + std::to_string(i) + "]");
}

#if !defined(NO_SM80) || !defined(NO_SM90)
void forward_case(int arch, const Shape& shape, int splits = 1) {
  sim::options().arch = arch;
  Attention a(shape);
  Array<float> partial_out(static_cast<size_t>(splits) * a.out.size()),
      partial_lse(static_cast<size_t>(splits) * a.lse.size());
  const cuda::SdpaArgs args = a.args(splits, partial_out, partial_lse);
  if (arch == 90) cuda::sdpa_sm90(args, cuda::DType::kBFloat16, nullptr);
#ifndef NO_SM80
  else
    cuda::sdpa(args, cuda::DType::kBFloat16, nullptr);
#endif
  compare("out", a.out, a.true_out, a.size_out);
  for (int64_t i = 0; i < a.lse.size(); i++)
    if (!(std::fabs(a.lse[i] - a.true_lse[i]) <= 1e-4)) wrong("lse[" + std::to_string(i) + "]");
}
#endif

#ifndef NO_BACKWARD
void backward_case(const Shape& shape) {
  Attention a(shape);
  const size_t d = static_cast<size_t>(shape.head_dim);
  Array<bf16> grad(a.out.size()), grad_q(a.q.size()), grad_k(a.k.size()), grad_v(a.v.size());
  Array<float> delta(a.lse.size()), none(1);
  Attention::fill(grad, 4);
  std::vector<double> want[3], size[3];
  for (int i = 0; i < 3; i++) {
    want[i].resize((i ? a.k : a.q).size()), size[i].resize(want[i].size());
  }
  const auto add = [&](int which, size_t at, double x) {
    want[which][at] += x, size[which][at] += std::fabs(x);
  };
  for (int row = 0; row < shape.heads * shape.q_tokens; row++) {
    a.lse[row] = static_cast<float>(a.true_lse[row]);
    for (size_t c = 0; c < d; c++)
      a.out[row * d + c] = from_float<bf16>(static_cast<float>(a.true_out[row * d + c]));
    const double own = Attention::dot(a.out, row * d, grad, row * d, shape.head_dim);
    for (int key = 0; key < shape.k_tokens; key++) {
      const double p = a.probability[static_cast<size_t>(row) * shape.k_tokens + key];
      const size_t at = a.of_kv(row, key);
      const double grad_p = Attention::dot(grad, row * d, a.v, at, shape.head_dim);
      const double grad_s = p * (grad_p - own) * a.scale;
      for (size_t c = 0; c < d; c++) {
        add(0, row * d + c, grad_s * to_float(a.k[at + c]));
        add(1, at + c, grad_s * to_float(a.q[row * d + c]));
        add(2, at + c, p * to_float(grad[row * d + c]));
      }
    }
  }
  cuda::sdpa_backward(
      {a.args(1, none, none), a.view(grad, shape.q_tokens), a.view(grad_q, shape.q_tokens),
       a.view(grad_k, shape.k_tokens), a.view(grad_v, shape.k_tokens), delta.data()},
      cuda::DType::kBFloat16, nullptr);
  compare("grad_q", grad_q, want[0], size[0]);
  compare("grad_k", grad_k, want[1], size[1]);
  compare("grad_v", grad_v, want[2], size[2]);
}
#endif

struct Register {
  Register() {
    sim::options().max_steps = 3000000;  // a mutant may turn in circles
#ifndef NO_SM80
    cases().push_back({"sm80", [] { forward_case(80, {2, 1, 75, 150, 64, true}); }});
    cases().push_back({"sm80_d80", [] { forward_case(80, {1, 1, 40, 70, 80, false}); }});
    cases().push_back({"sm80_decode", [] { forward_case(80, {4, 1, 3, 450, 64, true}, 3); }});
#endif
#ifndef NO_SM90
    cases().push_back({"sm90", [] { forward_case(90, {2, 1, 150, 420, 64, true}); }});
    cases().push_back({"sm90_d128", [] { forward_case(90, {1, 1, 70, 450, 128, false}); }});
#endif
#ifndef NO_BACKWARD
    cases().push_back({"backward", [] { backward_case({2, 1, 75, 150, 64, true}); }});
    cases().push_back({"backward_d80", [] { backward_case({1, 1, 70, 100, 80, false}); }});
#endif
  }
} registered;
}  // namespace
}  // namespace fusebench::test

int main(int argc, char** argv) { return fusebench::test::main_of(argc, argv); }
