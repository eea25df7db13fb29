// Facts about the current device, for the bindings.
#include "launch.cuh"
#include "ops.h"

namespace fusebench::cuda {
int current_arch() { return device_arch(); }
}  // namespace fusebench::cuda
