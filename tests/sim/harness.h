// For test programs that run the same kernels in the simulator and, compiled by nvcc, on a GPU.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/launch.cuh"  // -I csrc, or a mutated copy of it

namespace fusebench::test {
// An array that kernels can reach, and the host too.
template <class T>
class Array {
 public:
  explicit Array(size_t n) : n_(n) {
#ifdef __CUDACC__
    check_cuda(cudaMallocManaged(&p_, n * sizeof(T)), "cudaMallocManaged");
#else
    if (posix_memalign(reinterpret_cast<void**>(&p_), 128, n * sizeof(T))) std::abort();
#endif
  }
  Array(const Array&) = delete;
  ~Array() {
#ifdef __CUDACC__
    cudaFree(p_);
#else
    std::free(p_);
#endif
  }
  T* data() { return p_; }
  T& operator[](size_t i) { return p_[i]; }
  int64_t size() const { return static_cast<int64_t>(n_); }

 private:
  T* p_ = nullptr;
  size_t n_;
};

inline void synchronize() {
#ifdef __CUDACC__
  check_cuda(cudaDeviceSynchronize(), "the kernel failed");
#endif
}
// Small whole numbers, which products and sums keep exact, by a fixed pseudo-random sequence.
inline int small_number(uint32_t i) {
  i = (i + 1) * 2654435761u;
  return static_cast<int>(i >> 16) % 9 - 4;
}
template <class T>
T host_value(float v) {  // of a small whole number
  uint32_t u;
  std::memcpy(&u, &v, 4);
  uint16_t bits = static_cast<uint16_t>(u >> 16);
  if (!std::is_same<T, bf16>::value && v != 0)
    bits = static_cast<uint16_t>((u >> 16 & 0x8000) | ((u & 0x7fffffff) - (112u << 23)) >> 13);
  T t;
  std::memcpy(&t, &bits, 2);
  return t;
}

struct Case {
  std::string name;
  std::function<void()> run;
};
inline std::vector<Case>& cases() {
  static std::vector<Case> c;
  return c;
}
[[noreturn]] inline void wrong(const std::string& what) {
  throw std::runtime_error("WRONG " + what);
}

// `program list` names the cases; `program run [NAME...]` prints `NAME: ok` or `NAME: message`.
// In the simulator FUSEBENCH_SIMULATE_SEED and FUSEBENCH_SIMULATE_TIMING choose the schedule.
inline int main_of(int argc, char** argv) {
#ifndef __CUDACC__
  sim::options().arch = 90;
#endif
  const std::string command = argc > 1 ? argv[1] : "run";
  int failed = 0;
  for (const Case& c : cases()) {
    bool wanted = argc <= 2;
    for (int i = 2; i < argc; i++) wanted |= c.name == argv[i];
    if (!wanted) continue;
    if (command == "list") {
      std::printf("%s\n", c.name.c_str());
      continue;
    }
    std::string result = "ok";
    try {
      c.run();
    } catch (const std::exception& e) {
      result = e.what(), failed++;
      for (char& ch : result)
        if (ch == '\n') ch = '|';
    }
    std::printf("%s: %s\n", c.name.c_str(), result.c_str());
    std::fflush(stdout);
  }
  return failed != 0;
}
}  // namespace fusebench::test
