// pybind11 module fusebench._sim: importing it registers the CUDA ops for tensors on the CPU.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "sim.h"

namespace py = pybind11;
namespace sim = fusebench::sim;

namespace {
[[noreturn]] void refuse(const std::string& name, const std::string& got,
                         const std::string& accepted) {
  throw py::value_error(name + ": got " + got + ", accepted: " + accepted);
}
void configure(std::optional<uint64_t> seed, std::optional<std::string> timing,
               std::optional<std::string> arch, std::optional<int> multiprocessors,
               std::optional<int> resident, std::optional<long> max_steps) {
  sim::Options o = sim::options();
  if (seed) o.seed = *seed;
  if (timing) o.timing = sim::timing_named("timing", *timing);
  if (arch) o.arch = sim::arch_named("arch", *arch);
  if (multiprocessors) o.multiprocessors = *multiprocessors;
  if (resident) o.resident = *resident;
  if (max_steps) o.max_steps = *max_steps;
  if (o.multiprocessors < 1)
    refuse("multiprocessors", std::to_string(o.multiprocessors), "1 or more");
  if (o.resident < 1 || o.resident > 64) refuse("resident", std::to_string(o.resident), "1 to 64");
  if (o.max_steps < 0) refuse("max_steps", std::to_string(o.max_steps), "0 (no limit) or more");
  sim::options() = o;
}
py::dict settings() {
  const sim::Options& o = sim::options();
  const char* timings[] = {"early", "late", "random"};
  py::dict d;
  d["seed"] = o.seed;
  d["timing"] = timings[static_cast<int>(o.timing)];
  d["arch"] = o.arch == 90 ? "sm_90a" : "sm_80";
  d["multiprocessors"] = o.multiprocessors;
  d["resident"] = o.resident;
  d["max_steps"] = o.max_steps;
  return d;
}
py::dict counters() {
  py::dict all;
  for (const auto& [kernel, c] : sim::counters()) {
    py::dict d;
    d["launches"] = c.launches, d["blocks"] = c.blocks, d["switches"] = c.switches;
    d["read_bytes"] = c.read_bytes, d["read_sectors"] = c.read_sectors;
    d["write_bytes"] = c.write_bytes, d["write_sectors"] = c.write_sectors;
    d["shared_wavefronts"] = c.shared_wavefronts, d["shared_conflicts"] = c.shared_conflicts;
    d["mma"] = c.mma, d["wgmma"] = c.wgmma, d["tensor_flops"] = c.tensor_flops;
    all[py::str(kernel)] = d;
  }
  return all;
}
}  // namespace

PYBIND11_MODULE(_sim, m) {
  m.doc() = "Runs the CUDA kernels on tensors on the CPU, as a tester.";
  sim::options();  // a wrong environment fails the import, not the first launch
  m.def("configure", &configure, py::kw_only(), py::arg("seed") = py::none(),
        py::arg("timing") = py::none(), py::arg("arch") = py::none(),
        py::arg("multiprocessors") = py::none(), py::arg("resident") = py::none(),
        py::arg("max_steps") = py::none(),
        "Change what is given: seed, timing (early, late, random), arch (sm_80, sm_90a), "
        "multiprocessors, resident (blocks at the same time), max_steps (0: no limit).");
  m.def("settings", &settings, "The settings in force.");
  m.def("counters", &counters, "What each kernel did since the last reset, by kernel name.");
  m.def("reset_counters", [] { sim::counters().clear(); });
}
