// The state of a simulated launch: blocks, warps, threads, shared memory. Private to csrc/sim.
#pragma once
#include <array>
#include <deque>
#include <string>

#include "clock.h"
#include "sim.h"

namespace fusebench::sim {
constexpr int kMaxThreads = 1024, kMaxGroups = kMaxThreads / 128, kMaxBarriers = 64;
constexpr int kNamedBarriers = 16;
constexpr uint32_t kMaxShared = 227 << 10;

struct Block;
struct Warp;
struct Copy;
using CopyRef = std::shared_ptr<Copy>;

struct Thread {
  void* sp = nullptr;  // saved stack pointer
  Block* block = nullptr;
  Warp* warp = nullptr;
  int index = 0;
  dim3 id;
  bool done = false, queued = false;
  Place place = {"?", 0};
  const char* waits = nullptr;  // for what, when blocked, and which one of it
  long number = -1;

  ClockRef known;
  uint32_t time = 1;  // counts the releases of this thread
  uint32_t proxy_fences = 1;

  std::vector<CopyRef> copies;  // cp.async not yet committed
  std::deque<std::vector<CopyRef>> copy_groups;
  std::vector<CopyRef> stores;  // bulk stores not yet committed
  std::deque<std::vector<CopyRef>> store_groups;

  long multiplies = 0;  // wgmma issued; the count reached at each commit
  std::deque<long> multiply_groups;
  long multiplies_waited = 0;
  bool registers_fenced = false;

  Epoch now() const { return {static_cast<uint16_t>(index), time}; }
};

// One access of a lane, kept until the accesses of the whole warp can be put together.
struct Access {
  Place site;
  uint64_t address;
  uint8_t bytes;
  uint8_t kind;  // kAccess*
};
enum { kGlobalRead, kGlobalWrite, kShared };

struct Warp {
  Thread* lanes = nullptr;  // 32 in a row
  // The collective that lanes are arriving at.
  int arrived = 0;
  const char* op = nullptr;
  Place place = {"?", 0};
  std::vector<Thread*> waiters;
  struct Slot {
    uint32_t in[8];
    float acc[4];
    uint32_t out[4];
  } slot[32];
  std::vector<Access> log[32];
  int max_registers = 0;  // of setmaxnreg; 0: not used
};

// State of one 32-bit word of shared memory.
struct Shadow {
  bool init = false, generic = false;  // generic: last written by an ordinary store
  bool barrier = false;                // holds an mbarrier
  uint8_t swizzle = 0;                 // of the tensor-map load that wrote it
  uint16_t writes_in_flight = 0, reads_in_flight = 0;
  Epoch writer;
  uint16_t store_thread = 0;  // of the last ordinary store, and its proxy fences then
  uint32_t store_fences = 0;
  Epoch readers[3];  // since the last write, those not ordered before a later reader
  std::vector<Epoch> more_readers;
};

struct NamedBarrier {
  int expected = 0, arrived = 0;
  std::vector<Thread*> waiters;
  std::vector<Thread*> members;  // all that arrived, waiting or not
  std::vector<ClockRef> released;
  std::vector<Epoch> epochs;
};

struct Mbarrier {
  bool live = false, fenced = false;
  uint32_t address = 0, count = 0, pending = 0, phase = 0;
  int64_t tx = 0;
  int init_thread = 0;
  std::string name, waits[2];  // the latter by parity, for reports
  Clock arriving;
  ClockRef done;
  std::vector<Thread*> waiters;
};

// Accumulators, or A operands in registers, that a warp group has given up to its multiplies.
struct Accumulator {
  std::array<float*, 128> registers{};
  std::vector<float> value;  // 64 x n
  int n = 0, returned = 0;
  long last = -1;  // last multiply that uses it
};
struct Multiply {
  Type16 type = Type16::kBf16;
  uint64_t a = 0, b = 0;
  bool a_in_registers = false, trans_b = false;
  int n = 0, scale_d = 0, issued = 0;
  bool computed = false;
  std::shared_ptr<Accumulator> acc;
  struct Fragment {
    const uint32_t* registers = nullptr;
    uint32_t value[4];
  };
  std::vector<Fragment> a_fragments;  // of 128 threads, if a_in_registers
  Clock known;
};
struct WarpGroup {
  std::deque<Multiply> queue;  // in order; index = sequence number - base
  long base = 0, complete = 0;
  std::vector<std::shared_ptr<Accumulator>> accs;
  std::vector<Thread*> waiters;
  Multiply& at(long i) { return queue[i - base]; }
  long end() const { return base + static_cast<long>(queue.size()); }
};

// An asynchronous copy in flight.
struct Copy {
  enum Kind { kCpAsync, kTensorLoad, kTensorStore } kind = kCpAsync;
  Block* block = nullptr;
  Thread* thread = nullptr;
  uint32_t shared = 0;
  bool read_done = false, read_waited = false, done = false;
  const void* global = nullptr;  // kCpAsync
  int bytes = 0;
  TensorMap map{};  // the others
  int at[4] = {};
  int barrier = 0;
  std::vector<uint16_t> data;
};

struct Block {
  dim3 id;
  int number = 0;  // in launch order
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<WarpGroup> groups;
  NamedBarrier named[kNamedBarriers];
  std::vector<Mbarrier> barriers;
  std::vector<int16_t> barrier_at;  // shared address / 8 -> index in barriers, -1 none
  std::vector<uint8_t> shared;
  std::vector<Shadow> shadow;
  uint32_t base = 0;  // first valid shared address
  std::vector<CopyRef> in_flight;
  int live = 0, stack = 0;

  int agent_of_group(int g) const { return static_cast<int>(threads.size()) + g; }
  int agent_of_barrier(int b) const { return agent_of_group(kMaxGroups) + b; }
  size_t agents() const { return agent_of_barrier(kMaxBarriers); }
  bool is_thread(int agent) const { return agent < static_cast<int>(threads.size()); }
};

struct State {
  const Launch* launch = nullptr;
  const std::function<void()>* body = nullptr;
  std::vector<std::unique_ptr<Block>> blocks;  // resident
  std::vector<Thread*> runnable;
  Thread* current = nullptr;
  Counters* count = nullptr;
  Timing timing = Timing::kRandom;
  bool failed = false;
  std::string failure;
  uint64_t rng = 1;
  uint32_t elected = 0;
  long steps = 0;
  uint64_t slow_warps = 0;
};
extern State S;

inline Thread& me() { return *S.current; }
inline Block& my_block() { return *S.current->block; }

// -------------------------------------------------------------------------------- scheduler.cpp
// ---
uint32_t random_bits();
inline bool one_in(int n) { return random_bits() % static_cast<uint32_t>(n) == 0; }
void wake(Thread*);
void wake_all(std::vector<Thread*>&);
void block_on(std::vector<Thread*>&, const char* what, long number = -1);
void maybe_yield(int n = 4);  // lets others run, once in n times

// ----------------------------------------------------------------------------------- report.cpp
// ---
std::string format(const char*, ...) __attribute__((format(printf, 1, 2)));
void record(const Thread*, const std::string& message);  // the first one counts
std::string agent_name(const Block&, int agent);
std::string where(const Place&);
std::string deadlock_report();

// ----------------------------------------------------------------------------------- shadow.cpp
// ---
Shadow& word(Block&, uint32_t address);
void check_range(const Block&, uint32_t address, int bytes, int alignment, const char* what);
// `known`: of the accessing agent. By its own epochs it is always ordered.
void check_read(Block&, uint32_t address, const Clock& known, Epoch self, const char* what,
                bool async_proxy);
void check_write(Block&, uint32_t address, const Clock& known, Epoch self, const char* what);
void add_reader(Shadow&, const Clock& known, Epoch reader);
void set_writer(Shadow&, Epoch writer, bool generic);

// ----------------------------------------------------------------------------------- global.cpp
// ---
void begin_global();
void end_global();  // records what `fresh` buffers lack
// Checks bounds, alignment, access and ordering; returns nothing, faults instead.
void check_global(const Thread&, const void* p, size_t bytes, bool write, bool read_only,
                  bool atomic, const char* what);

// --------------------------------------------------------------------------------- counters.cpp
// ---
void log_access(uint64_t address, int bytes, int kind);
void flush_accesses(Warp&);
int shared_wavefronts(const uint32_t* addresses, int lanes, int bytes);

// ------------------------------------------------------------------------------------- async.cpp
// ---
void complete(const CopyRef&);
void finish_store_read(Copy&);
void check_exit_copies(Thread&);

// ---------------------------------------------------------------------------------- barriers.cpp
// --- Waits for all 32 lanes at the same instruction; the last one runs `all`.
template <class F>
void collective(const char* op, F all);
void release(Thread&, Clock& to);
Mbarrier& live_barrier(uint32_t address, const char* what);
void advance(Block&, Mbarrier&);
void check_exit_barriers(Block&);
void check_exit_registers(Block&);

// ------------------------------------------------------------------------------------- wgmma.cpp
// ---
void check_exit_multiplies(Thread&);

bool arrive_at_collective(const char* op);  // true in the last lane
void wait_for_collective();
void finish_collective();
template <class F>
void collective(const char* op, F all) {
  if (!arrive_at_collective(op)) return wait_for_collective();
  all(*S.current->warp);
  finish_collective();
}
}  // namespace fusebench::sim
