// Claiming the tasks of a parallel region, and the reused workspace.
#include "parallel.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

#if defined(__x86_64__)
#include <immintrin.h>
static void relax() { _mm_pause(); }
#elif defined(__aarch64__)
static void relax() { asm volatile("yield"); }
#else
static void relax() {}
#endif

namespace fusebench {

struct alignas(64) Phases::Share {
  std::atomic<int64_t> next[kMax];
};

struct Phases::State {
  int workers;
  int64_t tasks[kMax];
  struct alignas(64) Count {
    std::atomic<int64_t> done;
  } counts[kMax];
  Share* shares;
};

namespace {

void* aligned(size_t alignment, size_t bytes) {
  void* p = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

Phases::Phases(int workers, const int64_t* tasks, int phases) : count_(phases) {
  // One block for both, a few cache lines: malloc hands the same one back in every call.
  char* block = static_cast<char*>(aligned(64, sizeof(State) + workers * sizeof(Share)));
  state_ = new (block) State;
  state_->workers = workers;
  state_->shares = reinterpret_cast<Share*>(block + sizeof(State));
  for (int p = 0; p < phases; p++) {
    state_->tasks[p] = tasks[p];
    state_->counts[p].done.store(0, std::memory_order_relaxed);
  }
  for (int w = 0; w < workers; w++) {
    new (state_->shares + w) Share;
    for (int p = 0; p < phases; p++) state_->shares[w].next[p].store(w, std::memory_order_relaxed);
  }
}

Phases::~Phases() { std::free(state_); }

int64_t Phases::claim(int phase, int worker) {
  const int workers = state_->workers;
  const int64_t tasks = state_->tasks[phase];
  for (int i = 0; i < workers; i++) {
    std::atomic<int64_t>& next = state_->shares[(worker + i) % workers].next[phase];
    if (next.load(std::memory_order_relaxed) >= tasks) continue;
    const int64_t task = next.fetch_add(workers, std::memory_order_relaxed);
    if (task < tasks) return task;
  }
  return -1;
}

void Phases::done(int phase) { state_->counts[phase].done.fetch_add(1, std::memory_order_release); }

void Phases::wait(int phase) {
  const std::atomic<int64_t>& done = state_->counts[phase].done;
  for (int spins = 0; done.load(std::memory_order_acquire) < state_->tasks[phase];) {
    if (++spins < 2000) {
      relax();
    } else {
      sched_yield();  // the worker that holds the last task may need this core
    }
  }
}

void* workspace(size_t bytes) {
  struct Buffer {
    void* data = nullptr;
    size_t size = 0;
    ~Buffer() { std::free(data); }
  };
  thread_local Buffer buffer;
  if (bytes > buffer.size) {
    std::free(buffer.data);
    buffer.size = 0;
    buffer.data = nullptr;
    buffer.data = aligned(4096, bytes);
    buffer.size = bytes;
  }
  return buffer.data;
}

size_t second_level_cache() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  static const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return size_t(bytes);
#endif
  return 1 << 20;
}

}  // namespace fusebench
