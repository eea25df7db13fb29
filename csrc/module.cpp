// fusebench._C: what was built, and what this CPU can do. The ops register themselves with torch.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "cpu/kernels.h"

namespace py = pybind11;

namespace {

py::dict build_info() {
  py::dict info;
  info["compiler"] = FUSEBENCH_COMPILER;
  info["torch"] = FUSEBENCH_TORCH_VERSION;
  info["cuda"] = std::string(FUSEBENCH_CUDA_MISSING).empty();
  info["cuda_missing"] = FUSEBENCH_CUDA_MISSING;
  info["cuda_version"] = FUSEBENCH_CUDA_VERSION;
  info["cuda_architectures"] = FUSEBENCH_CUDA_ARCHITECTURES;
  info["cpu_isa"] = fusebench::kernels().isa;
  return info;
}

py::dict cpu_info() {
  std::vector<std::string> compiled, supported;
  for (int i = 0; const fusebench::Kernels* k = fusebench::compiled_isa(i); i++) {
    compiled.push_back(k->isa);
    if (fusebench::isa_supported(k->isa)) supported.push_back(k->isa);
  }
  py::dict info;
  info["isa"] = fusebench::kernels().isa;
  info["isa_compiled"] = compiled;
  info["isa_supported"] = supported;
  return info;
}

// The sum of measure() over `threads` threads at the same time, without the GIL.
template <class F>
double sum_over_threads(int threads, const F& measure) {
  if (threads < 1)
    throw py::value_error("threads is " + std::to_string(threads) + "; accepted: 1 or more");
  py::gil_scoped_release release;
  std::vector<double> rates(static_cast<size_t>(threads));
  std::vector<std::thread> others;
  for (int i = 1; i < threads; i++) {
    others.emplace_back([&, i] { rates[static_cast<size_t>(i)] = measure(); });
  }
  rates[0] = measure();
  for (std::thread& thread : others) thread.join();
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

constexpr double kSeconds = 0.2;

py::object measure_peak(const std::string& dtype, int threads) {
  if (dtype != "float32" && dtype != "bfloat16") return py::none();
  const fusebench::Kernels& kernels = fusebench::kernels();
  const auto type = dtype == "float32" ? fusebench::DType::float32 : fusebench::DType::bfloat16;
  return py::float_(sum_over_threads(threads, [&] { return kernels.peak_flops(type, kSeconds); }));
}

double measure_bandwidth(size_t bytes, int threads) {
  const fusebench::Kernels& kernels = fusebench::kernels();
  return sum_over_threads(threads, [&] {
    return kernels.read_bandwidth(bytes / static_cast<size_t>(threads), kSeconds);
  });
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Build facts and CPU capability; importing it registers the cpp (and cuda) ops.";
  m.def("build_info", &build_info,
        "Compiler, torch whose headers were used, and the CUDA part: whether it is there (cuda), "
        "why not (cuda_missing), its toolkit and architectures; the instruction set of the cpp "
        "kernels (cpu_isa).");
  m.def(
      "cpu_info", &cpu_info,
      "The instruction sets of the cpp kernels, best first: isa (in use), isa_compiled, "
      "isa_supported (by this CPU). Raises RuntimeError if FUSEBENCH_CPU_ISA names none of them.");
  m.def("use_isa", &fusebench::use_isa, py::arg("isa"),
        "Makes the cpp kernels use this instruction set from now on. Weights packed under another "
        "one may have to be packed again; the packed ops raise then.");
  m.def("measure_peak", &measure_peak, py::arg("dtype"), py::arg("threads"),
        "Floating-point operations per second of so many threads on operands of the dtype in "
        "registers, with the instruction set in use: the best of many bursts. None for a dtype the "
        "cpp kernels do not take.");
  m.def("measure_bandwidth", &measure_bandwidth, py::arg("bytes"), py::arg("threads"),
        "Bytes per second that so many threads read from a working set of `bytes`, an equal part "
        "each: the best of several passes.");
}
