// The simulator's options, and what the environment says of them.
#include <cstdlib>
#include <stdexcept>

#include "sim.h"

namespace fusebench::sim {
namespace {
[[noreturn]] void refuse(const std::string& name, const std::string& got, const char* accepted) {
  throw std::invalid_argument(name + ": got '" + got + "', accepted: " + accepted);
}
uint64_t seed_named(const std::string& name, const std::string& text) {
  if (text.empty() || text.size() > 19 || text.find_first_not_of("0123456789") != text.npos)
    refuse(name, text, "a whole number from 0 of at most 19 digits");
  return std::stoull(text);
}
Options from_environment() {
  Options o;
  const auto read = [](const char* name, auto& option, auto parse) {
    if (const char* text = std::getenv(name)) option = parse(name, text);
  };
  read("FUSEBENCH_SIMULATE_SEED", o.seed, seed_named);
  read("FUSEBENCH_SIMULATE_TIMING", o.timing, timing_named);
  read("FUSEBENCH_SIMULATE_ARCH", o.arch, arch_named);
  return o;
}
}  // namespace

int arch_named(const std::string& name, const std::string& text) {
  if (text == "sm_80") return 80;
  if (text == "sm_90a") return 90;
  refuse(name, text, "sm_80, sm_90a");
}
Timing timing_named(const std::string& name, const std::string& text) {
  if (text == "early") return Timing::kEarly;
  if (text == "late") return Timing::kLate;
  if (text == "random") return Timing::kRandom;
  refuse(name, text, "early, late, random");
}
Options& options() {
  static Options o = from_environment();
  return o;
}
}  // namespace fusebench::sim
