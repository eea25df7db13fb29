// fusebench._C: what was built, and what this CPU can do. The ops register themselves with torch.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
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

double peak_flops(const std::string& dtype, double seconds) {
  const bool is_float = dtype == "float32";
  if (!is_float && dtype != "bfloat16") {
    throw py::value_error("dtype is '" + dtype + "'; accepted: float32, bfloat16");
  }
  const fusebench::Kernels& kernels = fusebench::kernels();
  py::gil_scoped_release release;
  return kernels.peak_flops(is_float ? fusebench::DType::float32 : fusebench::DType::bfloat16,
                            seconds);
}

double read_bandwidth(size_t bytes, double seconds) {
  const fusebench::Kernels& kernels = fusebench::kernels();
  py::gil_scoped_release release;
  return kernels.read_bandwidth(bytes, seconds);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Build facts and CPU capability; importing it registers the cpp (and cuda) ops.";
  m.def("build_info", &build_info,
        "Compiler, torch whose headers were used, and the CUDA part: whether it is there (cuda), "
        "why not (cuda_missing), its toolkit and architectures.");
  m.def(
      "cpu_info", &cpu_info,
      "The instruction sets of the cpp kernels, best first: isa (in use), isa_compiled, "
      "isa_supported (by this CPU). Raises RuntimeError if FUSEBENCH_CPU_ISA names none of them.");
  m.def("use_isa", &fusebench::use_isa, py::arg("isa"),
        "Makes the cpp kernels use this instruction set from now on. Weights packed under another "
        "one may have to be packed again; the packed ops raise then.");
  m.def("peak_flops", &peak_flops, py::arg("dtype"), py::arg("seconds") = 0.2,
        "Floating-point operations per second of this thread on operands of the dtype (float32, "
        "bfloat16) in registers, with the instruction set in use; the best of many bursts. "
        "Releases the GIL: call it from several threads for the machine's.");
  m.def("read_bandwidth", &read_bandwidth, py::arg("bytes"), py::arg("seconds") = 0.2,
        "Bytes per second this thread reads from a buffer of `bytes`; as peak_flops.");
}
