// Fibres: a switch in assembly on x86-64, ucontext elsewhere and where it is asked for.
#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#if defined(__x86_64__) && !defined(FUSEBENCH_SIM_UCONTEXT)
#define SWITCH_IN_ASSEMBLY
#else
#include <ucontext.h>
#endif

namespace fusebench::sim {
namespace {
constexpr size_t kStack = 128 << 10;
std::vector<char*> stacks;
}  // namespace

void reserve_stacks(int n) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  while (static_cast<int>(stacks.size()) < n) {
    void* p = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::runtime_error("fusebench simulator: no memory for stacks");
    mprotect(p, page, PROT_NONE);  // an overflow stops at once
    stacks.push_back(static_cast<char*>(p));
  }
}

#ifdef SWITCH_IN_ASSEMBLY
// Callee-saved registers go on the old stack (System V).
asm(R"(
.text
.type fusebench_sim_switch,@function
fusebench_sim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size fusebench_sim_switch,.-fusebench_sim_switch
)");
extern "C" void fusebench_sim_switch(void** save, void* load) __attribute__((visibility("hidden")));
void switch_context(void** save, void* load) { fusebench_sim_switch(save, load); }

void* new_context(int slot, void (*entry)()) {
  void** sp = reinterpret_cast<void**>(stacks[slot] + kStack);
  *--sp = nullptr;  // where entry would return to
  *--sp = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; i++) *--sp = nullptr;
  return sp;
}
#else
namespace {
std::vector<ucontext_t*> contexts;
}
void switch_context(void** save, void* load) {
  ucontext_t here;
  *save = &here;
  swapcontext(&here, static_cast<ucontext_t*>(load));
}
void* new_context(int slot, void (*entry)()) {
  while (contexts.size() < stacks.size()) contexts.push_back(new ucontext_t);
  ucontext_t* c = contexts[slot];
  getcontext(c);
  c->uc_stack.ss_sp = stacks[slot];
  c->uc_stack.ss_size = kStack;
  c->uc_link = nullptr;
  makecontext(c, entry, 0);
  return c;
}
#endif
}  // namespace fusebench::sim
