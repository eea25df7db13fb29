// Every kernel of every instruction set this CPU has, against plain loops in double. Buffers end at
// a page that may not be touched, so that vector and tile accesses past the end, which a sanitizer
// does not see in intrinsics, stop the program too.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cpu/kernels.h"

using namespace fusebench;

namespace {

int failures = 0, checks = 0;

float round_to(DType dtype, float x) {
  if (dtype == DType::float32) return x;
  uint32_t u;
  std::memcpy(&u, &x, 4);
  u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
  std::memcpy(&x, &u, 4);
  return x;
}
double unit(DType dtype) { return dtype == DType::float32 ? 0x1p-23 : 0x1p-8; }

// n elements of a dtype whose last byte is the last byte before a forbidden page.
class Buffer {
 public:
  Buffer(DType dtype, size_t n) : dtype_(dtype), n_(n) {
    const size_t page = size_t(sysconf(_SC_PAGESIZE)), bytes = n * size();
    mapped_ = (bytes + page - 1) / page * page + page;
    base_ = static_cast<char*>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + mapped_ - page, page, PROT_NONE) != 0)
      throw std::runtime_error("no memory for a test buffer");
    data_ = base_ + mapped_ - page - bytes;
  }
  ~Buffer() { munmap(base_, mapped_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  size_t size() const { return dtype_ == DType::float32 ? 4 : 2; }
  size_t count() const { return n_; }
  void* data() { return data_; }
  double operator[](size_t i) const {
    uint32_t u = 0;
    std::memcpy(
        dtype_ == DType::float32 ? reinterpret_cast<char*>(&u) : reinterpret_cast<char*>(&u) + 2,
        data_ + i * size(), size());
    float f;
    std::memcpy(&f, &u, 4);
    return f;
  }
  void set(size_t i, float x) {
    x = round_to(dtype_, x);
    uint32_t u;
    std::memcpy(&u, &x, 4);
    if (dtype_ == DType::bfloat16) u >>= 16;
    std::memcpy(data_ + i * size(), &u, size());
  }
  Buffer& fill(float mean, float deviation) {
    static std::mt19937 random(1);
    std::normal_distribution<float> normal(mean, deviation);
    for (size_t i = 0; i < n_; i++) set(i, normal(random));
    return *this;
  }

 private:
  DType dtype_;
  size_t n_, mapped_;
  char *base_, *data_;
};

void run_threads(int workers, void (*body)(void*, int), void* context) {
  std::vector<std::thread> threads;
  for (int i = 1; i < workers; i++) threads.emplace_back(body, context, i);
  body(context, 0);
  for (std::thread& t : threads) t.join();
}
// What a nested region does: one thread after the other, last first.
void run_serially(int workers, void (*body)(void*, int), void* context) {
  for (int i = workers - 1; i >= 0; i--) body(context, i);
}

// |got - want| <= two roundings of the result and of `magnitude`, what its sums are made of.
void expect(const char* isa, const std::string& what, DType dtype, const Buffer& got,
            const std::vector<double>& want, const std::vector<double>& magnitude) {
  checks++;
  for (size_t i = 0; i < want.size(); i++) {
    const double budget = 2 * unit(dtype) * (std::fabs(want[i]) + magnitude[i]);
    if (!(std::fabs(got[i] - want[i]) <= budget)) {
      failures++;
      std::printf("%s %s %s: element %zu is %g, expected %g within %g\n", isa, what.c_str(),
                  dtype == DType::float32 ? "float32" : "bfloat16", i, got[i], want[i], budget);
      return;
    }
  }
}

std::vector<double> normalised(const Buffer& x, int64_t m, int64_t k, Norm norm, const Buffer& w,
                               const Buffer& b, float eps) {
  std::vector<double> y(size_t(m * k));
  for (int64_t r = 0; r < m; r++) {
    double mean = 0, square = 0;
    for (int64_t i = 0; i < k && norm == Norm::layernorm; i++) mean += x[size_t(r * k + i)] / k;
    for (int64_t i = 0; i < k; i++) square += std::pow(x[size_t(r * k + i)] - mean, 2) / k;
    for (int64_t i = 0; i < k; i++) {
      const double v = x[size_t(r * k + i)];
      y[size_t(r * k + i)] =
          norm == Norm::none ? v
                             : (v - mean) / std::sqrt(square + eps) * w[size_t(i)] + b[size_t(i)];
    }
  }
  return y;
}

struct Product {
  std::vector<double> value, magnitude;
};
// Magnitude: in float32, where a sum rounds at every step, four times the sum of its terms' sizes;
// in bfloat16, where the terms are rounded and their errors are random, four times their norm.
Product multiply(DType dtype, const std::vector<double>& a, const Buffer& w, int64_t m, int64_t n,
                 int64_t k) {
  Product p{std::vector<double>(size_t(m * n)), std::vector<double>(size_t(m * n))};
  for (int64_t r = 0; r < m; r++) {
    for (int64_t c = 0; c < n; c++) {
      double sum = 0, squares = 0, sizes = 0;
      for (int64_t i = 0; i < k; i++) {
        const double term = a[size_t(r * k + i)] * w[size_t(c * k + i)];
        sum += term;
        squares += term * term;
        sizes += std::fabs(term);
      }
      p.value[size_t(r * n + c)] = sum;
      p.magnitude[size_t(r * n + c)] = 4 * (dtype == DType::float32 ? sizes : std::sqrt(squares));
    }
  }
  return p;
}

void test_gemms(const Kernels& kernels, DType dtype, const Parallel& parallel, int64_t m, int64_t n,
                int64_t k, Norm norm, bool packed) {
  const std::string shape = " m " + std::to_string(m) + " n " + std::to_string(n) + " k " +
                            std::to_string(k) + (packed ? " packed" : "");
  const auto pack = [&](Buffer& w, int64_t rows, int64_t columns, bool gate_up) {
    auto p = std::make_unique<Buffer>(DType::bfloat16,
                                      kernels.packed_bytes(dtype, rows, columns, gate_up) / 2);
    kernels.pack(dtype, w.data(), rows, columns, gate_up, p->data(), parallel);
    const char* wrong =
        kernels.check_packed(dtype, p->data(), p->count() * 2, rows, columns, gate_up);
    if (wrong ||
        !kernels.check_packed(dtype, p->data(), p->count() * 2, rows + 2, columns, gate_up))
      throw std::runtime_error("check_packed is wrong about its own packed weight");
    return p;
  };
  Buffer x(dtype, size_t(m * k)), w(dtype, size_t(n * k)), nw(dtype, size_t(k)),
      nb(dtype, size_t(k));
  Buffer bias(dtype, size_t(n)), residual(dtype, size_t(m * n)), out(dtype, size_t(m * n));
  x.fill(norm == Norm::layernorm ? 5.f : 0.f, 1.f);
  w.fill(0.f, 1.f / std::sqrt(float(k)));
  nw.fill(1.f, 0.1f);
  nb.fill(0.f, 0.1f);
  bias.fill(0.f, 1.f);
  residual.fill(0.f, 1.f);
  const Prologue prologue{norm, nw.data(), nb.data(), 1e-5f};
  const std::vector<double> a = normalised(x, m, k, norm, nw, nb, 1e-5f);

  const auto pw = packed ? pack(w, n, k, false) : nullptr;
  kernels.linear(dtype,
                 {x.data(), w.data(), pw ? pw->data() : nullptr, bias.data(), residual.data(),
                  out.data(), m, n, k, prologue},
                 parallel);
  Product want = multiply(dtype, a, w, m, n, k);
  for (size_t i = 0; i < want.value.size(); i++) {
    want.value[i] += bias[i % size_t(n)] + residual[i];
    want.magnitude[i] += std::fabs(bias[i % size_t(n)]) + std::fabs(residual[i]);
  }
  expect(kernels.isa, "linear" + shape, dtype, out, want.value, want.magnitude);

  // The same numbers as a gated FFN: 2 * hidden = n rounded down.
  const int64_t hidden = n / 2;
  if (hidden == 0) return;
  Buffer down(dtype, size_t(k * hidden)), y(dtype, size_t(m * k));
  down.fill(0.f, 1.f / std::sqrt(float(hidden)));
  const auto pu = packed ? pack(w, 2 * hidden, k, true) : nullptr;
  const auto pd = packed ? pack(down, k, hidden, false) : nullptr;
  kernels.swiglu_ffn(
      dtype,
      {x.data(), w.data(), down.data(), pu ? pu->data() : nullptr, pd ? pd->data() : nullptr,
       nullptr, nullptr, nullptr, y.data(), m, k, k, hidden, prologue},
      parallel);
  const Product both = multiply(dtype, a, w, m, 2 * hidden, k);
  std::vector<double> h(size_t(m * hidden));
  for (int64_t r = 0; r < m; r++) {
    for (int64_t c = 0; c < hidden; c++) {
      const double g = both.value[size_t(r * 2 * hidden + c)];
      h[size_t(r * hidden + c)] =
          g / (1 + std::exp(-g)) * both.value[size_t(r * 2 * hidden + hidden + c)];
    }
  }
  Product result = multiply(dtype, h, down, m, k, hidden);
  for (double& v : result.magnitude) v = 4 * v + 1;
  expect(kernels.isa, "swiglu_ffn" + shape, dtype, y, result.value, result.magnitude);
}

void test_qkv(const Kernels& kernels, DType dtype, const Parallel& parallel, int64_t batch,
              int64_t seq, int64_t k, int64_t heads, int64_t kv_heads, int64_t d) {
  const int64_t n = (heads + 2 * kv_heads) * d, m = batch * seq, half = d / 2;
  Buffer x(dtype, size_t(m * k)), w(dtype, size_t(n * k)), none(dtype, size_t(k));
  Buffer cosine(DType::float32, size_t(seq * half)), sine(DType::float32, size_t(seq * half));
  Buffer q(dtype, size_t(m * heads * d)), key(dtype, size_t(m * kv_heads * d)),
      value(dtype, size_t(m * kv_heads * d));
  x.fill(0.f, 1.f);
  w.fill(0.f, 1.f / std::sqrt(float(k)));
  for (int64_t i = 0; i < seq * half; i++) {
    cosine.set(size_t(i), std::cos(0.3f * float(i)));
    sine.set(size_t(i), std::sin(0.3f * float(i)));
  }
  kernels.qkv_proj(dtype,
                   {x.data(),
                    w.data(),
                    nullptr,
                    nullptr,
                    static_cast<float*>(cosine.data()),
                    static_cast<float*>(sine.data()),
                    q.data(),
                    key.data(),
                    value.data(),
                    batch,
                    seq,
                    k,
                    heads,
                    kv_heads,
                    d,
                    {Norm::none, nullptr, nullptr, 0.f}},
                   parallel);
  const Product p = multiply(dtype, normalised(x, m, k, Norm::none, none, none, 0.f), w, m, n, k);
  const std::string shape =
      " of qkv_proj, head_dim " + std::to_string(d) + " seq " + std::to_string(seq);
  const auto part = [&](const char* name, Buffer& got, int64_t first, int64_t count, bool rotate) {
    std::vector<double> want(got.count()), magnitude(got.count());
    for (int64_t b = 0; b < batch; b++)
      for (int64_t h = 0; h < count; h++)
        for (int64_t t = 0; t < seq; t++)
          for (int64_t i = 0; i < d; i++) {
            const size_t at = size_t((b * seq + t) * n + (first + h) * d);
            const size_t to = size_t(((b * count + h) * seq + t) * d + i);
            const int64_t other = i < half ? i + half : i - half;
            const size_t angle = size_t(t * half + (i < half ? i : other));
            const double turned = p.value[at + size_t(other)] * (i < half ? -1 : 1) * sine[angle];
            want[to] =
                rotate ? p.value[at + size_t(i)] * cosine[angle] + turned : p.value[at + size_t(i)];
            magnitude[to] = p.magnitude[at + size_t(i)] +
                            (rotate ? p.magnitude[at + size_t(other)] + std::fabs(turned) : 0);
          }
    expect(kernels.isa, name + shape, dtype, got, want, magnitude);
  };
  part("q", q, 0, heads, true);
  part("key", key, heads, kv_heads, true);
  part("value", value, heads + kv_heads, kv_heads, false);
}

void test_sdpa(const Kernels& kernels, DType dtype, const Parallel& parallel, int64_t heads,
               int64_t kv_heads, int64_t tq, int64_t tk, int64_t d, bool causal) {
  Buffer q(dtype, size_t(heads * tq * d)), k(dtype, size_t(kv_heads * tk * d)),
      v(dtype, size_t(kv_heads * tk * d)), out(dtype, size_t(heads * tq * d));
  q.fill(0.f, 1.f);
  k.fill(0.f, 1.f);
  v.fill(0.f, 1.f);
  const float scale = 1.f / std::sqrt(float(d));
  kernels.sdpa(dtype,
               {q.data(),
                k.data(),
                v.data(),
                out.data(),
                {heads * tq * d, tq * d, d},
                {kv_heads * tk * d, tk * d, d},
                {kv_heads * tk * d, tk * d, d},
                1,
                heads,
                kv_heads,
                tq,
                tk,
                d,
                causal,
                scale},
               parallel);
  std::vector<double> want(out.count()),
      magnitude(out.count(), dtype == DType::float32 ? 8.0 : 2.0);
  std::vector<double> p(static_cast<size_t>(tk));
  for (int64_t h = 0; h < heads; h++) {
    const int64_t kv = h / (heads / kv_heads);
    for (int64_t t = 0; t < tq; t++) {
      const int64_t seen = causal ? t + tk - tq + 1 : tk;
      double total = 0;
      for (int64_t j = 0; j < seen; j++) {
        double s = 0;
        for (int64_t i = 0; i < d; i++)
          s += q[size_t((h * tq + t) * d + i)] * k[size_t((kv * tk + j) * d + i)];
        total += p[size_t(j)] = std::exp(s * scale);
      }
      for (int64_t j = 0; j < seen; j++)
        for (int64_t i = 0; i < d; i++)
          want[size_t((t * heads + h) * d + i)] +=
              p[size_t(j)] / total * v[size_t((kv * tk + j) * d + i)];
    }
  }
  expect(kernels.isa,
         "sdpa tq " + std::to_string(tq) + " tk " + std::to_string(tk) + " d " + std::to_string(d),
         dtype, out, want, magnitude);
}

void test_embedding(const Kernels& kernels, DType dtype, const Parallel& parallel) {
  const int64_t seq = 7, vocab = 5, width = 37;
  Buffer table(dtype, size_t(vocab * width)), positions(dtype, size_t(seq * width)),
      out(dtype, size_t(2 * seq * width));
  table.fill(0.f, 1.f);
  positions.fill(0.f, 1.f);
  std::vector<int64_t> tokens(2 * seq);
  for (size_t i = 0; i < tokens.size(); i++) tokens[i] = int64_t(i * 3 % vocab);
  const EmbeddingArgs args{tokens.data(), table.data(), positions.data(), out.data(), 2, seq,
                           vocab,         width};
  const int64_t bad = kernels.embedding(dtype, args, parallel);
  std::vector<double> want(out.count()), magnitude(out.count(), 0.0);
  for (int64_t i = 0; i < 2 * seq * width; i++) {
    const int64_t row = i / width, c = i % width;
    want[size_t(i)] =
        table[size_t(tokens[size_t(row)] * width + c)] + positions[size_t(row % seq * width + c)];
  }
  expect(kernels.isa, "embedding", dtype, out, want, magnitude);
  tokens[9] = vocab;
  checks++;
  if (bad != -1 || kernels.embedding(dtype, args, parallel) != 9) {
    failures++;
    std::printf("%s embedding: the token out of range was not found\n", kernels.isa);
  }
}

}  // namespace

int main() {
  const Parallel pools[] = {{run_threads, 3}, {run_serially, 4}, {run_threads, 1}};
  for (int i = 0; const Kernels* k = compiled_isa(i); i++) {
    if (!isa_supported(k->isa)) {
      std::printf("%s: not supported by this CPU\n", k->isa);
      continue;
    }
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      int turn = 0;
      for (const bool packed : {false, true}) {
        for (const auto& [m, n, kk] : std::vector<std::array<int64_t, 3>>{{1, 48, 64},
                                                                          {3, 33, 40},
                                                                          {5, 70, 96},
                                                                          {16, 50, 64},
                                                                          {29, 34, 33},
                                                                          {33, 1, 65},
                                                                          {70, 130, 288},
                                                                          {40, 64, 512}}) {
          const Norm norm = Norm(turn % 3);
          test_gemms(*k, dtype, pools[turn++ % 3], m, n, kk, norm, packed);
        }
      }
      // Enough work for several threads.
      test_gemms(*k, dtype, pools[0], 150, 320, 512, Norm::rmsnorm, true);
      test_gemms(*k, dtype, pools[1], 150, 320, 512, Norm::none, false);
      test_qkv(*k, dtype, pools[0], 2, 9, 64, 4, 2, 16);
      test_qkv(*k, dtype, pools[1], 1, 35, 40, 3, 1, 20);
      test_qkv(*k, dtype, pools[2], 1, 1, 96, 2, 2, 80);
      for (const bool causal : {true, false}) {
        test_sdpa(*k, dtype, pools[0], 4, 2, 40, 40, 64, causal);
        test_sdpa(*k, dtype, pools[1], 2, 1, 33, 300, 36, causal);
        test_sdpa(*k, dtype, pools[2], 6, 2, 1, 70, 80, causal);
        test_sdpa(*k, dtype, pools[0], 4, 1, 3, 600, 32, causal);
        test_sdpa(*k, dtype, pools[0], 8, 8, 130, 130, 96, causal);
      }
      test_embedding(*k, dtype, pools[0]);
    }
    std::printf("%s: done\n", k->isa);
  }
  std::printf("%d checks, %d failures\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
