// Threads of the caller's own pool, one parallel region with several phases on top of them, and
// memory.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fusebench {

// The caller's thread pool. run() calls body(context, i) for every i in [0, workers), on any
// threads, at the same time or one after the other, and returns when all calls have returned.
struct Parallel {
  void (*run)(int workers, void (*body)(void* context, int worker), void* context);
  int threads;
};

// The tasks of a region. Phase p + 1 starts when every task of phase p is done: a worker waits
// for tasks, never for workers, so one that is late or never comes costs no more than its share.
// Each worker claims its own tasks first (i = worker, worker + workers, ..), the same in every
// call, so that its core's cache still holds their weights; then it takes over others'.
class Phases {
 public:
  static constexpr int kMax = 4;
  Phases(int workers, const int64_t* tasks, int phases);
  ~Phases();
  Phases(const Phases&) = delete;
  Phases& operator=(const Phases&) = delete;

  int count() const { return count_; }
  int64_t claim(int phase, int worker);  // a task nobody else has, or -1
  void done(int phase);                  // a claimed task is finished
  void wait(int phase);                  // for every task of the phase

 private:
  struct Share;
  struct State;
  State* state_;
  int count_;
};

// `bytes` of memory aligned to a page that belong to this thread until its next call; kept and
// reused, so that a kernel called again allocates nothing.
void* workspace(size_t bytes);

// Bytes of one core's second-level cache; 1 MiB where the system does not tell.
size_t second_level_cache();

}  // namespace fusebench
