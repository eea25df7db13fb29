// Fibres: stacks with guard pages and a switch between them.
#pragma once
#include <cstddef>

namespace fusebench::sim {
// Saves the running context in *save and continues in the context `load`.
void switch_context(void** save, void* load);
// A context that starts entry() on the given stack slot; entry never returns.
void* new_context(int slot, void (*entry)());
// Makes stack slots 0..n-1 exist.
void reserve_stacks(int n);
}  // namespace fusebench::sim
