// cp.async and tensor-map copies: in flight from issue until something waits for them.
#include <algorithm>
#include <stdexcept>

#include "layouts.h"
#include "state.h"

namespace fusebench::sim {
namespace {
constexpr uint32_t kNaN2 = 0x7fff7fff;

void start(const CopyRef& c) {
  c->block = me().block, c->thread = S.current;
  c->block->in_flight.push_back(c);
}
void forget(const CopyRef& c) {
  auto& f = c->block->in_flight;
  auto i = std::find(f.begin(), f.end(), c);
  if (i != f.end()) *i = f.back(), f.pop_back();
}
// The target of a copy is undefined from issue on.
void begin_write(Block& b, uint32_t a, const char* what) {
  check_write(b, a, *me().known, me().now(), what);
  word(b, a).writes_in_flight++;
  std::memcpy(&b.shared[a], &kNaN2, 4);
}
// Calls f(shared address, row of the box, column) for every two columns of a box.
template <class F>
void each_word(const Copy& c, F f) {
  const int rows = c.map.box[1] * c.map.box[2] * c.map.box[3];
  for (int r = 0; r < rows; r++)
    for (int col = 0; col < c.map.box[0]; col += 2)
      f(layout::box_address(c.shared, c.map.box, c.map.swizzle, r, col), r, col);
}
// Global address of an element of a box; null outside the tensor.
uint16_t* element(const Copy& c, int row, int col) {
  const TensorMap& m = c.map;
  const int64_t x[4] = {c.at[0] + col, c.at[1] + row % m.box[1],
                        c.at[2] + row / m.box[1] % m.box[2], c.at[3] + row / m.box[1] / m.box[2]};
  char* p = reinterpret_cast<char*>(m.base) + x[0] * 2;
  for (int i = 0; i < 4; i++) {
    if (x[i] < 0 || x[i] >= m.dims[i]) return nullptr;
    if (i) p += x[i] * m.strides[i - 1];
  }
  return reinterpret_cast<uint16_t*>(p);
}
}  // namespace

// ------------------------------------------------------------------------------------ cp.async ---
void cp_async(uint32_t dst, const void* src, int bytes) {
  Block& b = my_block();
  check_range(b, dst, 16, 16, "cp.async");
  if (bytes < 0 || bytes > 16) fail("cp.async copies 0 to 16 bytes, not %d", bytes);
  if (bytes) {
    if (reinterpret_cast<uintptr_t>(src) % 16)
      fail("cp.async: source %p is not aligned to 16 bytes", src);
    check_global(me(), src, bytes, false, false, false, "cp.async");
  }
  log_access(reinterpret_cast<uintptr_t>(src), bytes, kGlobalRead);
  auto c = std::make_shared<Copy>();
  c->shared = dst, c->global = src, c->bytes = bytes;
  for (uint32_t i = 0; i < 16; i += 4) begin_write(b, dst + i, "cp.async");
  start(c);
  me().copies.push_back(c);
  if (S.timing == Timing::kEarly) complete(c);
  maybe_yield(64);
}
void cp_async_commit() {
  Thread& t = me();
  t.copy_groups.push_back(std::move(t.copies));
  t.copies.clear();
}
void cp_async_wait(int n) {
  Thread& t = me();
  for (; static_cast<int>(t.copy_groups.size()) > n; t.copy_groups.pop_front())
    for (auto& c : t.copy_groups.front()) {
      complete(c);
      for (uint32_t i = 0; i < 16; i += 4) {  // from here on it counts as written by this thread
        Shadow& s = word(*t.block, c->shared + i);
        s.writes_in_flight--;
        set_writer(s, t.now(), true);
        s.store_thread = static_cast<uint16_t>(t.index), s.store_fences = t.proxy_fences;
      }
    }
  maybe_yield(16);
}

// ----------------------------------------------------------------------------- tensor-map copies
// ---
void check_tensor_map(const TensorMap& m) {
  auto refuse = [](const std::string& why) {
    throw std::invalid_argument("fusebench: tensor map: " + why);
  };
  if (m.rank < 2 || m.rank > 4) refuse("rank " + std::to_string(m.rank) + " is not in 2..4");
  if (reinterpret_cast<uintptr_t>(m.base) % 16) refuse("the base address is not a multiple of 16");
  if (m.swizzle > 3) refuse("swizzle mode " + std::to_string(m.swizzle) + " does not exist");
  for (int i = 0; i < m.rank; i++) {
    if (m.dims[i] < 1 || m.dims[i] > INT64_C(1) << 32)
      refuse("dimension " + std::to_string(i) + " is " + std::to_string(m.dims[i]));
    if (m.box[i] < 1 || m.box[i] > 256)
      refuse("box side " + std::to_string(i) + " is " + std::to_string(m.box[i]) +
             ", not in 1..256");
    if (i &&
        (m.strides[i - 1] % 16 || m.strides[i - 1] < 1 || m.strides[i - 1] >= INT64_C(1) << 40))
      refuse("stride " + std::to_string(i - 1) + " is " + std::to_string(m.strides[i - 1]) +
             " bytes, not a multiple of 16");
  }
  if (m.box[0] * 2 % 16)
    refuse("box rows of " + std::to_string(m.box[0] * 2) + " bytes are not a multiple of 16");
  if (m.swizzle && m.box[0] * 2 > layout::swizzle_bytes(m.swizzle))
    refuse("box rows are longer than the swizzle");
}
namespace {
CopyRef tensor_copy(Copy::Kind kind, const TensorMap* m, uint32_t smem, const int (&at)[4],
                    const char* what) {
  Block& b = my_block();
  check_range(b, smem, layout::box_bytes(m->box), 128, what);
  const uint32_t span = m->swizzle == 1   ? 1024
                        : m->swizzle == 2 ? 512
                        : m->swizzle == 3 ? 256
                                          : 128;
  if (smem % span)
    fail("%s: shared address 0x%x is not a multiple of the swizzle pattern's %u bytes", what, smem,
         span);
  if (m->swizzle && m->box[0] * 2 != layout::swizzle_bytes(m->swizzle))
    fail("%s: box rows shorter than the swizzle are not modelled", what);
  auto c = std::make_shared<Copy>();
  c->kind = kind, c->shared = smem, c->map = *m;
  std::copy(at, at + 4, c->at);
  return c;
}
// Checks and counts the rows of a box in global memory, as far as they lie inside the tensor.
void check_global_box(const Copy& c, bool write, const char* what) {
  const TensorMap& m = c.map;
  const int first = std::max(0, -c.at[0]);
  const int end = static_cast<int>(std::min<int64_t>(m.box[0], m.dims[0] - c.at[0]));
  if (first >= end) return;
  for (int r = 0; r < m.box[1] * m.box[2] * m.box[3]; r++) {
    const uint16_t* p = element(c, r, first);
    if (!p) continue;
    const int bytes = (end - first) * 2;
    check_global(me(), p, bytes, write, false, false, what);
    const uintptr_t at = reinterpret_cast<uintptr_t>(p);
    const long sectors = static_cast<long>((at + bytes - 1) / 32 - at / 32 + 1);
    (write ? S.count->write_bytes : S.count->read_bytes) += bytes;
    (write ? S.count->write_sectors : S.count->read_sectors) += sectors;
  }
}
}  // namespace

void tma_load(uint32_t dst, const TensorMap* map, uint32_t bar, const int (&at)[4]) {
  Block& b = my_block();
  Mbarrier& m = live_barrier(bar, "TMA load");
  if (!m.fenced)
    fail("TMA load: %s was initialised without a fence to the async proxy", m.name.c_str());
  const CopyRef c = tensor_copy(Copy::kTensorLoad, map, dst, at, "TMA load");
  c->barrier = static_cast<int>(&m - b.barriers.data());
  each_word(*c, [&](uint32_t a, int, int) { begin_write(b, a, "TMA load"); });
  check_global_box(*c, false, "TMA load");
  start(c);
  if (S.timing == Timing::kEarly) complete(c);
  maybe_yield();
}
void tma_store(const TensorMap* map, uint32_t src, const int (&at)[4]) {
  Block& b = my_block();
  const CopyRef c = tensor_copy(Copy::kTensorStore, map, src, at, "TMA store");
  each_word(*c, [&](uint32_t a, int, int) {
    check_read(b, a, *me().known, me().now(), "TMA store", true);
    word(b, a).reads_in_flight++;
  });
  check_global_box(*c, true, "TMA store");
  start(c);
  me().stores.push_back(c);
  if (S.timing == Timing::kEarly) complete(c);
  maybe_yield();
}
void bulk_commit() {
  Thread& t = me();
  t.store_groups.push_back(std::move(t.stores));
  t.stores.clear();
}
void bulk_wait(int n, bool read_only) {
  Thread& t = me();
  // A store whose read has been waited for may still be writing: it stays in its group for that.
  const int groups = static_cast<int>(t.store_groups.size()) - n;
  for (int g = 0; g < groups; g++)
    for (auto& c : t.store_groups[g]) {
      if (!c->read_waited) {
        finish_store_read(*c);
        c->read_waited = true;
        each_word(*c, [&](uint32_t a, int, int) {
          Shadow& s = word(*t.block, a);
          s.reads_in_flight--;
          add_reader(s, *t.known, t.now());
        });
      }
      if (!read_only) complete(c);
    }
  if (!read_only)
    for (int g = 0; g < groups; g++) t.store_groups.pop_front();
}

// --------------------------------------------------------------------------------- completion ---
void finish_store_read(Copy& c) {
  if (c.read_done) return;
  c.read_done = true;
  c.data.resize(layout::box_bytes(c.map.box) / 2);
  each_word(c, [&](uint32_t a, int r, int col) {
    std::memcpy(&c.data[r * c.map.box[0] + col], &c.block->shared[a], 4);
  });
}
void complete(const CopyRef& c) {
  if (c->done) return;
  c->done = true;
  forget(c);
  Block& b = *c->block;
  if (c->kind == Copy::kCpAsync) {
    std::memset(&b.shared[c->shared], 0, 16);
    if (c->bytes) std::memcpy(&b.shared[c->shared], c->global, c->bytes);
  } else if (c->kind == Copy::kTensorStore) {
    finish_store_read(*c);
    each_word(*c, [&](uint32_t, int r, int col) {
      for (int i = 0; i < 2; i++)
        if (uint16_t* p = element(*c, r, col + i)) *p = c->data[r * c->map.box[0] + col + i];
    });
  } else {
    Mbarrier& m = b.barriers[c->barrier];
    each_word(*c, [&](uint32_t a, int r, int col) {
      uint16_t v[2] = {0, 0};  // outside the tensor
      for (int i = 0; i < 2; i++)
        if (const uint16_t* p = element(*c, r, col + i)) v[i] = *p;
      std::memcpy(&b.shared[a], v, 4);
      Shadow& s = word(b, a);
      s.writes_in_flight--;
      set_writer(s, {static_cast<uint16_t>(b.agent_of_barrier(c->barrier)), m.phase + 1}, false);
      s.swizzle = static_cast<uint8_t>(c->map.swizzle);
    });
    m.tx -= layout::box_bytes(c->map.box);
    advance(b, m);
  }
}
void check_exit_copies(Thread& t) {
  if (!t.copies.empty()) fail("thread exits with cp.async copies not committed");
  for (auto& g : t.copy_groups)
    if (!g.empty()) fail("thread exits with cp.async copies not waited for");
  if (!t.stores.empty()) fail("thread exits with a TMA store not committed");
  for (auto& g : t.store_groups)
    for (auto& c : g)
      if (!c->read_waited)
        fail("thread exits before its TMA store was waited for (it may still read shared memory)");
}
}  // namespace fusebench::sim
