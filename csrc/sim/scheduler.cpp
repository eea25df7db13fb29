// Runs the threads of a launch as fibres, in a seeded random order, a few blocks at a time.
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <stdexcept>

#include "fiber.h"
#include "state.h"

namespace fusebench::sim {
State S;
dim3 threadIdx, blockIdx, blockDim, gridDim;

std::map<std::string, Counters>& counters() {
  static std::map<std::string, Counters> c;
  return c;
}

namespace {
void* main_context;
uint64_t launches;

void start() {
  (*S.body)();
  Thread& t = me();
  check_exit_copies(t);
  check_exit_multiplies(t);
  t.done = true;
  t.block->live--;
  static void* nowhere;
  switch_context(&nowhere, main_context);
}

// A random runnable thread; now and then some warps are slow for a while.
Thread* pick() {
  if (S.steps % 512 == 0) S.slow_warps = random_bits() & random_bits();
  auto& r = S.runnable;
  size_t i = 0;
  for (int tries = 0; tries < 4; tries++) {
    i = random_bits() % r.size();
    if (!(S.slow_warps >> (r[i]->index / 32) & 1)) break;
  }
  Thread* t = r[i];
  r[i] = r.back(), r.pop_back();
  t->queued = false;
  return t;
}
void enter(Thread* t) {
  S.current = t;
  S.count->switches++, S.steps++;
  threadIdx = t->id, blockIdx = t->block->id;
}

// Leaves the running thread for another runnable one, or for the main loop if there is none or it
// has something to look after.
void leave() {
  Thread* from = S.current;
  const bool look = S.failed || S.runnable.empty() || S.steps % 16 == 0;
  if (look) return switch_context(&from->sp, main_context);
  Thread* to = pick();
  enter(to);
  if (to != from) switch_context(&from->sp, to->sp);
}

void start_block(int number, int stack) {
  const Launch& l = *S.launch;
  auto owned = std::make_unique<Block>();
  Block& b = *owned;
  S.blocks.push_back(std::move(owned));
  b.number = number, b.stack = stack, b.live = l.threads;
  b.id = dim3(number % l.grid.x, number / l.grid.x % l.grid.y, number / l.grid.x / l.grid.y);
  b.threads.resize(l.threads), b.warps.resize(l.threads / 32);
  b.groups.resize((l.threads + 127) / 128);
  b.base = 1024 + 128 * (random_bits() % 8);  // dynamic shared memory is only 128-byte aligned here
  b.shared.assign(b.base + l.smem_bytes, 0xff);  // NaN
  b.shadow.assign((b.base + l.smem_bytes) / 4 + 1, Shadow());
  b.barrier_at.assign((b.base + l.smem_bytes) / 8 + 1, -1);
  b.barriers.reserve(kMaxBarriers);
  const ClockRef nothing = std::make_shared<Clock>(b.agents(), 0u);
  for (int i = 0; i < l.threads; i++) {
    Thread& t = b.threads[i];
    t.block = &b, t.warp = &b.warps[i / 32], t.index = i, t.id = dim3(i, 0, 0), t.known = nothing;
    if (i % 32 == 0) t.warp->lanes = &t;
    t.sp = new_context(stack * l.threads + i, start);
    wake(&t);
  }
  S.count->blocks++;
}

void end_block(size_t i) {
  Block& b = *S.blocks[i];
  for (auto& w : b.warps) flush_accesses(w);
  check_exit_barriers(b);
  check_exit_registers(b);
  while (!S.failed && !b.in_flight.empty()) {
    const CopyRef c = b.in_flight.back();
    if (c->kind == Copy::kTensorLoad)
      record(nullptr, format("block %d exits with a TMA load in flight", b.number));
    else
      complete(c);
  }
  S.blocks.erase(S.blocks.begin() + static_cast<long>(i));
}

// Lets a copy in flight finish, if there is one where it looks.
bool complete_one() {
  Block& b = *S.blocks[random_bits() % S.blocks.size()];
  if (b.in_flight.empty()) return false;
  const CopyRef c = b.in_flight[random_bits() % b.in_flight.size()];
  S.current = c->thread;  // who is to blame
  if (c->kind == Copy::kTensorStore && one_in(2))
    finish_store_read(*c);
  else
    complete(c);
  return true;
}
// Nothing can run: only a load can release a waiting thread.
bool complete_load() {
  std::vector<CopyRef> loads;
  for (auto& b : S.blocks)
    for (auto& c : b->in_flight)
      if (c->kind == Copy::kTensorLoad) loads.push_back(c);
  if (loads.empty()) return false;
  const CopyRef& c = loads[random_bits() % loads.size()];
  S.current = c->thread;
  complete(c);
  return true;
}

void run_all() {
  const Launch& l = *S.launch;
  const int total = static_cast<int>(l.grid.x * l.grid.y * l.grid.z);
  const int resident = std::max(1, options().resident);
  std::vector<int> free_stacks;
  for (int i = 0; i < resident; i++) free_stacks.push_back(i);
  int next = 0;
  while (!S.failed) {
    for (size_t i = S.blocks.size(); i-- > 0;)
      if (S.blocks[i]->live == 0) free_stacks.push_back(S.blocks[i]->stack), end_block(i);
    while (next < total && !free_stacks.empty() && !S.failed) {
      start_block(next++, free_stacks.back());
      free_stacks.pop_back();
    }
    if (S.blocks.empty() || S.failed) break;
    if (S.timing == Timing::kRandom && one_in(2) && complete_one()) continue;
    if (S.runnable.empty()) {
      if (!complete_load()) record(nullptr, deadlock_report());
      continue;
    }
    if (options().max_steps && S.steps > options().max_steps) {
      record(nullptr, format("still running after %ld steps", options().max_steps));
      break;
    }
    enter(pick());
    switch_context(&main_context, S.current->sp);
  }
}
}  // namespace

uint32_t random_bits() {  // xorshift*
  S.rng ^= S.rng >> 12, S.rng ^= S.rng << 25, S.rng ^= S.rng >> 27;
  return static_cast<uint32_t>(S.rng * 0x2545F4914F6CDD1Dull >> 32);
}
void wake(Thread* t) {
  if (t->done || t->queued) return;
  t->queued = true;
  S.runnable.push_back(t);
}
void wake_all(std::vector<Thread*>& waiters) {
  for (Thread* t : waiters) wake(t);
  waiters.clear();
}
void block_on(std::vector<Thread*>& waiters, const char* what, long number) {
  Thread& t = me();
  t.waits = what, t.number = number;
  waiters.push_back(&t);
  leave();
  t.waits = nullptr;
}
void maybe_yield(int n) {
  if (one_in(n)) wake(S.current), leave();
}
void fail(const char* f, ...) {
  char b[512];
  va_list a;
  va_start(a, f), vsnprintf(b, sizeof b, f, a), va_end(a);
  record(S.current, b);
  for (;;) leave();  // the thread is abandoned
}

void run(const Launch& l, const std::function<void()>& body) {
  static std::mutex one_at_a_time;
  std::lock_guard<std::mutex> lock(one_at_a_time);
  const uint64_t total = static_cast<uint64_t>(l.grid.x) * l.grid.y * l.grid.z;
  if (l.threads < 32 || l.threads > kMaxThreads || l.threads % 32)
    throw std::runtime_error("simulated " + l.described +
                             ": threads must be 32..1024, a multiple of 32");
  if (l.smem_bytes > kMaxShared)
    throw std::runtime_error("simulated " + l.described +
                             ": at most 232448 bytes of shared memory");
  if (!total || l.grid.x > 0x7fffffff || l.grid.y > 65535 || l.grid.z > 65535)
    throw std::runtime_error("simulated " + l.described + ": grid out of range");
  S = State();
  S.launch = &l, S.body = &body;
  S.count = &counters()[l.kernel];
  S.count->launches++;
  S.timing = options().timing;
  S.rng = (options().seed + 1) * 0x9E3779B97F4A7C15ull + 0x1234567 + ++launches * 0x1000193;
  S.elected = random_bits() % 32;
  blockDim = dim3(l.threads), gridDim = l.grid;
  reserve_stacks(l.threads * std::max(1, options().resident));
  begin_global();
  run_all();
  end_global();
  const std::string failure = S.failure;
  S = State();
  if (!failure.empty()) throw std::runtime_error("simulated " + l.described + ": " + failure);
}
}  // namespace fusebench::sim
