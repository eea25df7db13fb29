// Warp collectives, block barriers and mbarriers, and the order they establish.
#include <algorithm>

#include "state.h"

namespace fusebench::sim {
// --------------------------------------------------------------------------- warp collectives ---
bool arrive_at_collective(const char* op) {
  Thread& t = me();
  Warp& w = *t.warp;
  if (!w.arrived)
    w.op = op, w.place = t.place;
  else if (w.op != op || !(w.place == t.place))
    fail("warp diverged: some lanes are at %s (%s), this one is at %s", w.op,
         where(w.place).c_str(), op);
  return ++w.arrived == 32;
}
void wait_for_collective() {
  Warp& w = *me().warp;
  block_on(w.waiters, w.op);
}
void finish_collective() {
  Warp& w = *me().warp;
  w.arrived = 0;
  flush_accesses(w);
  wake_all(w.waiters);
  maybe_yield();
}

namespace {
// Everything the threads did before is ordered before everything they do from now on.
void order_all(const std::vector<ClockRef>& before, const std::vector<Epoch>& epochs, size_t agents,
               Thread* const* threads, size_t n) {
  auto all = std::make_shared<Clock>(agents, 0u);
  const Clock* last = nullptr;
  for (auto& c : before)
    if (c.get() != last) join(*all, *(last = c.get()));
  for (Epoch e : epochs) (*all)[e.agent] = std::max((*all)[e.agent], e.time);
  for (size_t i = 0; i < n; i++) threads[i]->known = all;
}
}  // namespace

void sync_warp() {
  collective("sync_warp", [](Warp& w) {
    std::vector<ClockRef> before;
    std::vector<Epoch> epochs;
    Thread* lanes[32];
    for (int l = 0; l < 32; l++) {
      lanes[l] = &w.lanes[l];
      before.push_back(lanes[l]->known), epochs.push_back(lanes[l]->now());
      lanes[l]->time++;
    }
    order_all(before, epochs, w.lanes[0].block->agents(), lanes, 32);
  });
}
uint32_t shuffle(uint32_t v, int lane, bool exclusive_or) {
  Warp& w = *me().warp;
  const int l = me().index % 32, from = exclusive_or ? l ^ lane : lane;
  if (from < 0 || from > 31) fail("shuffle from lane %d, which does not exist", from);
  w.slot[l].in[0] = v, w.slot[l].in[1] = static_cast<uint32_t>(from);
  collective(exclusive_or ? "shfl_xor" : "shfl", [](Warp& w) {
    for (auto& s : w.slot) s.out[0] = w.slot[s.in[1]].in[0];
  });
  return w.slot[l].out[0];
}
uint32_t ballot(bool p) {
  Warp& w = *me().warp;
  const int l = me().index % 32;
  w.slot[l].in[0] = p;
  collective("ballot", [](Warp& w) {
    uint32_t mask = 0;
    for (int i = 0; i < 32; i++) mask |= w.slot[i].in[0] << i;
    for (auto& s : w.slot) s.out[0] = mask;
  });
  return w.slot[l].out[0];
}
bool elect_one() {
  collective("elect_one", [](Warp&) {});
  return static_cast<uint32_t>(me().index % 32) == S.elected;
}

// ----------------------------------------------------------------------------- block barriers ---
namespace {
void arrive_at_barrier(int id, int n, bool wait) {
  Block& b = my_block();
  Thread& t = me();
  NamedBarrier& bar = b.named[id];
  if (bar.arrived && bar.expected != n)
    fail("barrier %d: some expect %d threads, this one %d", id, bar.expected, n);
  bar.expected = n, bar.arrived++;
  if (std::find(bar.released.begin(), bar.released.end(), t.known) == bar.released.end())
    bar.released.push_back(t.known);
  bar.epochs.push_back(t.now());
  t.time++;
  if (wait) bar.members.push_back(&t);
  if (bar.arrived > n) fail("barrier %d: more than the expected %d threads arrive", id, n);
  if (bar.arrived < n) {
    if (wait) block_on(bar.waiters, "barrier", id);
    return;
  }
  // Only those who wait learn what the others did.
  std::vector<ClockRef> released;
  released.swap(bar.released);
  order_all(released, bar.epochs, b.agents(), bar.members.data(), bar.members.size());
  bar.arrived = 0, bar.epochs.clear(), bar.members.clear();
  wake_all(bar.waiters);
}
// What the compiler may give each thread of a block that has the multiprocessor for itself.
int initial_registers(const Block& b) {
  return std::min(255, 65536 / static_cast<int>(b.threads.size())) / 8 * 8;
}
void check_barrier(int id, int n) {
  if (id < 0 || id >= kNamedBarriers) fail("barrier id %d is not in 0..15", id);
  if (n <= 0 || n % 32 || n > static_cast<int>(my_block().threads.size()))
    fail("barrier %d: %d threads; a multiple of 32 up to the block's %zu is needed", id, n,
         my_block().threads.size());
}
}  // namespace

void barrier_sync(int id, int n) {
  if (!n) n = static_cast<int>(my_block().threads.size());
  check_barrier(id, n);
  collective("a block barrier", [](Warp&) {});
  arrive_at_barrier(id, n, true);
}
void barrier_arrive(int id, int n) {
  check_barrier(id, n);
  collective("named_barrier_arrive", [](Warp&) {});
  arrive_at_barrier(id, n, false);
}
// The registers a warp group asks for must exist, and all its warps must ask for the same.
void setmaxnreg(int n, bool increase) {
  collective(increase ? "setmaxnreg_inc" : "setmaxnreg_dec", [&](Warp& w) {
    if (!w.max_registers) w.max_registers = initial_registers(my_block());
    if (increase != (n > w.max_registers))
      fail("setmaxnreg_%s<%d>, but the warp has %d registers", increase ? "inc" : "dec", n,
           w.max_registers);
    w.max_registers = n;
  });
}
void check_exit_registers(Block& b) {
  const int initial = initial_registers(b);
  int total = 0;
  bool used = false;
  for (size_t i = 0; i < b.warps.size(); i++) {
    const int n = b.warps[i].max_registers, first = b.warps[i / 4 * 4].max_registers;
    if (n != first)
      return record(
          nullptr,
          format("setmaxnreg: warp %zu has %d registers, warp %zu of its group %d (0: not called)",
                 i, n, i / 4 * 4, first));
    used |= n > 0, total += n ? n : initial;
  }
  if (used && total * 32 > 65536)
    record(nullptr, format("setmaxnreg: the warps ask for %d registers, a multiprocessor has 65536",
                           total * 32));
}

// ---------------------------------------------------------------------------------- mbarriers ---
void release(Thread& t, Clock& to) {
  join(to, *t.known);
  to[t.index] = std::max(to[t.index], t.time);
  t.time++;
}
namespace {
Mbarrier& barrier_slot(uint32_t a, const char* what) {
  Block& b = my_block();
  check_range(b, a, 8, 8, what);
  int16_t& at = b.barrier_at[a / 8];
  if (at < 0) {
    if (b.barriers.size() == kMaxBarriers)
      fail("more than %d mbarriers are not modelled", kMaxBarriers);
    at = static_cast<int16_t>(b.barriers.size());
    b.barriers.emplace_back();
    b.barriers.back().name = format("mbarrier 0x%x", a);
  }
  return b.barriers[at];
}
}  // namespace
void label(uint32_t a, const char* name, int index) {
  barrier_slot(a, "SIM_LABEL").name = format("%s[%d]", name, index);
}
void mbar_init(uint32_t a, uint32_t count) {
  Block& b = my_block();
  Mbarrier& m = barrier_slot(a, "mbar_init");
  if (!count || count >= 1u << 20)
    fail("mbar_init: %u arrivals; 1 to 2^20 - 1 are possible", count);
  if (m.live) fail("mbar_init: %s is already initialised", m.name.c_str());
  for (uint32_t w : {a, a + 4}) {
    check_write(b, w, *me().known, me().now(), "mbar_init");
    word(b, w).barrier = true;
    set_writer(word(b, w), me().now(), true);
  }
  m.live = true, m.address = a, m.count = m.pending = count, m.init_thread = me().index;
  m.waits[0] = m.name + " to complete parity 0", m.waits[1] = m.name + " to complete parity 1";
  m.arriving.assign(b.agents(), 0u);
  m.done = std::make_shared<Clock>(b.agents(), 0u);
}
void fence_mbar_init() {
  for (Mbarrier& m : my_block().barriers)
    if (m.live && m.init_thread == me().index) m.fenced = true;
}
void fence_proxy_async() {
  me().proxy_fences++;
  fence_mbar_init();
}
Mbarrier& live_barrier(uint32_t a, const char* what) {
  Block& b = my_block();
  check_range(b, a, 8, 8, what);
  const int i = b.barrier_at[a / 8];
  if (i < 0 || !b.barriers[i].live) fail("%s: the mbarrier at 0x%x is not initialised", what, a);
  Mbarrier& m = b.barriers[i];
  const Epoch init = word(b, a).writer;
  if (init.agent != me().index && !knows(*me().known, init))
    fail("race: %s uses %s without being ordered after its mbar_init", what, m.name.c_str());
  return m;
}
void advance(Block& b, Mbarrier& m) {
  if (m.pending || m.tx) return;
  auto done = std::make_shared<Clock>(*m.done);
  join(*done, m.arriving);
  (*done)[b.agent_of_barrier(static_cast<int>(&m - b.barriers.data()))] = ++m.phase;
  m.done = done;
  m.pending = m.count;
  wake_all(m.waiters);  // each looks at the parity again
}
void mbar_arrive(uint32_t a, uint32_t tx) {
  Mbarrier& m = live_barrier(a, "mbar_arrive");
  m.tx += tx;
  if (m.tx >= 1 << 20) fail("%s: more than 2^20 - 1 bytes expected", m.name.c_str());
  release(me(), m.arriving);
  m.pending--;
  advance(my_block(), m);
  maybe_yield();
}
bool mbar_try_wait(uint32_t a, uint32_t parity) {
  Mbarrier& m = live_barrier(a, "mbar_try_wait");
  if (one_in(32)) return maybe_yield(1), false;  // it may time out at any moment
  if ((m.phase & 1) == parity) {                 // that phase is still running
    block_on(m.waiters, m.waits[parity & 1].c_str());
    if ((m.phase & 1) == parity) return false;
  }
  Thread& t = me();
  if (t.known != m.done) {
    auto c = std::make_shared<Clock>(*t.known);
    join(*c, *m.done);
    t.known = c;
  }
  return true;
}
void check_exit_barriers(Block& b) {
  for (const NamedBarrier& n : b.named)
    if (n.arrived)
      record(nullptr,
             format("block %d exits with barrier %d waiting: %d of %d threads have arrived",
                    b.number, static_cast<int>(&n - b.named), n.arrived, n.expected));
  for (Mbarrier& m : b.barriers)  // a ring that ends inside a phase has a wrong count somewhere
    if (m.live && (m.pending != m.count || m.tx))
      record(
          nullptr,
          format("block %d exits with %s inside phase %u: arrivals missing %u of %u, bytes "
                 "missing %ld",
                 b.number, m.name.c_str(), m.phase, m.pending, m.count, static_cast<long>(m.tx)));
}
}  // namespace fusebench::sim
