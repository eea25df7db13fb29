// Shared memory: bounds, alignment, words never written, and accesses that nothing orders.
#include "state.h"

namespace fusebench::sim {
namespace {
bool ordered(const Clock& known, Epoch self, Epoch e) {
  return e.agent == self.agent || knows(known, e);
}
std::string by(const Block& b, Epoch e) { return agent_name(b, e.agent); }
}  // namespace

uint32_t shared_base() { return my_block().base; }
Shadow& word(Block& b, uint32_t a) { return b.shadow[a / 4]; }

void check_range(const Block& b, uint32_t a, int bytes, int alignment, const char* what) {
  if (a % static_cast<uint32_t>(alignment))
    fail("%s: shared address 0x%x is not aligned to %d bytes", what, a, alignment);
  if (a < b.base || a + static_cast<uint32_t>(bytes) > b.shared.size())
    fail("%s: shared address 0x%x + %d is outside the %zu bytes of the launch (they start at 0x%x)",
         what, a, bytes, b.shared.size() - b.base, b.base);
}

void check_read(Block& b, uint32_t a, const Clock& known, Epoch self, const char* what,
                bool async_proxy) {
  Shadow& s = word(b, a);
  if (s.barrier) fail("%s reads an mbarrier at 0x%x", what, a);
  if (s.writes_in_flight)
    fail("race: %s reads shared 0x%x while an asynchronous copy into it is in flight", what, a);
  if (!s.init) fail("%s reads shared 0x%x, which nothing has written", what, a);
  if (!ordered(known, self, s.writer))
    fail("race: %s reads shared 0x%x without being ordered after its writer (%s)", what, a,
         by(b, s.writer).c_str());
  if (async_proxy && s.generic && b.threads[s.store_thread].proxy_fences == s.store_fences)
    fail("%s reads shared 0x%x, stored by thread %d without fence_proxy_async", what, a,
         s.store_thread);
}

void check_write(Block& b, uint32_t a, const Clock& known, Epoch self, const char* what) {
  Shadow& s = word(b, a);
  if (s.barrier) fail("%s overwrites an mbarrier at 0x%x", what, a);
  if (s.writes_in_flight)
    fail("race: %s writes shared 0x%x while an asynchronous copy into it is in flight", what, a);
  if (s.reads_in_flight)
    fail(
        "race: %s overwrites shared 0x%x while an asynchronous read of it is in flight or not "
        "waited for",
        what, a);
  if (s.init && !ordered(known, self, s.writer))
    fail("race: %s overwrites shared 0x%x without being ordered after its last write (%s)", what, a,
         by(b, s.writer).c_str());
  auto check = [&](Epoch r) {
    if (r.time && !ordered(known, self, r))
      fail("race: %s overwrites shared 0x%x without being ordered after a read of it (%s)", what, a,
           by(b, r).c_str());
  };
  for (Epoch r : s.readers) check(r);
  for (Epoch r : s.more_readers) check(r);
}

// A reader that comes after another replaces it: who is ordered after the later one is ordered
// after both.
void add_reader(Shadow& s, const Clock& known, Epoch reader) {
  auto replaceable = [&](Epoch e) { return !e.time || ordered(known, reader, e); };
  for (Epoch& e : s.readers)
    if (replaceable(e)) return void(e = reader);
  for (Epoch& e : s.more_readers)
    if (replaceable(e)) return void(e = reader);
  s.more_readers.push_back(reader);
}

void set_writer(Shadow& s, Epoch writer, bool generic) {
  s.init = true, s.generic = generic, s.writer = writer;
  for (Epoch& e : s.readers) e = Epoch();
  s.more_readers.clear();
}

void shared_load(uint32_t a, void* out, int bytes) {
  Thread& t = me();
  Block& b = *t.block;
  check_range(b, a, bytes, bytes, "shared load");
  for (int i = 0; i < bytes; i += 4) {
    check_read(b, a + i, *t.known, t.now(), "shared load", false);
    add_reader(word(b, a + i), *t.known, t.now());
  }
  std::memcpy(out, &b.shared[a], bytes);
  log_access(a, bytes, kShared);
  maybe_yield(64);  // a polling loop must let the others run
}

void shared_store(uint32_t a, const void* in, int bytes) {
  Thread& t = me();
  Block& b = *t.block;
  check_range(b, a, bytes, bytes, "shared store");
  for (int i = 0; i < bytes; i += 4) {
    check_write(b, a + i, *t.known, t.now(), "shared store");
    Shadow& s = word(b, a + i);
    set_writer(s, t.now(), true);
    s.store_thread = static_cast<uint16_t>(t.index), s.store_fences = t.proxy_fences;
  }
  std::memcpy(&b.shared[a], in, bytes);
  log_access(a, bytes, kShared);
  maybe_yield(64);
}
}  // namespace fusebench::sim
