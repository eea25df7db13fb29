// Asynchronous warp-group multiplies.
#include <algorithm>

#include "float16.h"
#include "layouts.h"
#include "state.h"

namespace fusebench::sim {
namespace {
// Calls f(shared address, is_b, row or depth, chunk) for every 16 bytes a multiply reads.
template <class F>
void each_chunk(const Multiply& w, F f) {
  if (!w.a_in_registers)
    for (int r = 0; r < 64; r++)
      for (int c = 0; c < 2; c++) f(layout::k_major_chunk(layout::decode(w.a), r, c), false, r, c);
  const layout::Descriptor b = layout::decode(w.b);
  if (w.trans_b) {
    for (int k = 0; k < 16; k++)
      for (int c = 0; c < w.n / 8; c++) f(layout::mn_major_chunk(b, k, c), true, k, c);
  } else {
    for (int r = 0; r < w.n; r++)
      for (int c = 0; c < 2; c++) f(layout::k_major_chunk(b, r, c), true, r, c);
  }
}

void compute(Block& block, Multiply& w) {
  w.computed = true;
  static float a[64][16], b[16][256];
  auto value = w.type == Type16::kBf16 ? bf16_to_float : fp16_to_float;
  each_chunk(w, [&](uint32_t address, bool is_b, int r, int c) {
    uint16_t v[8];
    std::memcpy(v, &block.shared[address], 16);
    for (int i = 0; i < 8; i++)
      (!is_b ? a[r][c * 8 + i] : w.trans_b ? b[r][c * 8 + i] : b[c * 8 + i][r]) = value(v[i]);
  });
  if (w.a_in_registers)
    for (int t = 0; t < 128; t++)
      for (int i = 0; i < 4; i++)
        for (int h = 0; h < 2; h++) {
          const layout::RowCol p = layout::wgmma_a(t, i, h);
          a[p.row][p.col] = value(static_cast<uint16_t>(w.a_fragments[t].value[i] >> 16 * h));
        }
  for (int r = 0; r < 64; r++) {
    float* d = &w.acc->value[static_cast<size_t>(r) * w.n];
    if (!w.scale_d) std::fill(d, d + w.n, 0.f);
    for (int k = 0; k < 16; k++)
      for (int n = 0; n < w.n; n++) d[n] += a[r][k] * b[k][n];
  }
  S.count->wgmma++, S.count->tensor_flops += 2. * 64 * w.n * 16;
}

Epoch epoch_of(const Block& b, int group, long sequence) {
  return {static_cast<uint16_t>(b.agent_of_group(group)), static_cast<uint32_t>(sequence + 1)};
}

void issued_by_all(Block& block, int group, long sequence) {
  WarpGroup& g = block.groups[group];
  Multiply& w = g.at(sequence);
  for (int o = w.a_in_registers; o < 2; o++) {
    const layout::Descriptor d = layout::decode(o ? w.b : w.a);
    if (d.base_offset) fail("wgmma: a descriptor's base offset is not modelled");
    const uint32_t span = static_cast<uint32_t>(layout::swizzle_bytes(d.mode)) * 8 - 1;
    if (d.mode && d.start & span & ~0x7fu & 0x3ff)
      fail("wgmma: operand %c does not start on a row 0 of its swizzle pattern", "AB"[o]);
  }
  each_chunk(w, [&](uint32_t a, bool is_b, int, int) {
    const char* what = is_b ? "wgmma (operand B)" : "wgmma (operand A)";
    check_range(block, a, 16, 16, what);
    const uint32_t mode = layout::decode(is_b ? w.b : w.a).mode;
    for (uint32_t i = 0; i < 16; i += 4) {
      check_read(block, a + i, w.known, epoch_of(block, group, sequence), what, true);
      Shadow& s = word(block, a + i);
      if (!s.generic && s.swizzle != mode)
        fail("%s: the descriptor has swizzle mode %u, but the TMA load wrote with mode %u", what,
             mode, s.swizzle);
      s.reads_in_flight++;
    }
  });
  if (S.timing == Timing::kEarly || (S.timing == Timing::kRandom && one_in(2)))
    for (long i = g.complete; i <= sequence; i++)
      if (!g.at(i).computed) compute(block, g.at(i));
}

void retire(Block& block, int group, long upto) {  // the first `upto` multiplies have completed
  WarpGroup& g = block.groups[group];
  for (; g.complete < upto; g.complete++) {
    Multiply& w = g.at(g.complete);
    if (!w.computed) compute(block, w);
    each_chunk(w, [&](uint32_t a, bool, int, int) {
      for (uint32_t i = 0; i < 16; i += 4) {
        Shadow& s = word(block, a + i);
        s.reads_in_flight--;
        add_reader(s, w.known, epoch_of(block, group, g.complete));
      }
    });
  }
}
}  // namespace

void wgmma_fence() {
  collective("wgmma_fence", [](Warp&) {});
  me().registers_fenced = true;
}

void wgmma(Type16 type, float* d, int n, uint64_t a, const uint32_t* a_registers, uint64_t b,
           bool trans_b, int scale_d) {
  collective("wgmma", [](Warp&) {});
  Thread& t = me();
  Block& block = *t.block;
  const int group = t.index / 128, lane = t.index % 128;
  WarpGroup& g = block.groups[group];
  const long sequence = t.multiplies++;
  while (g.end() <= sequence) g.queue.emplace_back();
  Multiply& w = g.at(sequence);
  if (!w.issued) {
    w.type = type, w.a = a, w.b = b, w.n = n, w.scale_d = scale_d, w.trans_b = trans_b;
    w.a_in_registers = a_registers != nullptr, w.known = *t.known;
    if (a_registers) w.a_fragments.resize(128);
    for (auto& acc : g.accs)
      if (acc->registers[lane] == d) w.acc = acc;
    if (!w.acc) {
      w.acc = std::make_shared<Accumulator>();
      w.acc->n = n, w.acc->value.resize(static_cast<size_t>(64) * n);
      g.accs.push_back(w.acc);
    }
    w.acc->last = sequence;
  }
  if (w.type != type || w.a != a || w.b != b || w.n != n || w.scale_d != scale_d ||
      w.trans_b != trans_b || w.a_in_registers != (a_registers != nullptr))
    fail("wgmma: operands differ within the warp group");
  meet(w.known, *t.known);
  if (a_registers) {
    if (!t.registers_fenced) fail("wgmma: operand A is in registers that no wgmma_fence covers");
    w.a_fragments[lane].registers = a_registers;
    std::memcpy(w.a_fragments[lane].value, a_registers, 16);
  }
  Accumulator& acc = *w.acc;
  if (acc.registers[lane] != d) {  // the registers pass from the thread to the multiplier
    if (acc.registers[lane] || acc.n != n) fail("wgmma: accumulators differ within the warp group");
    if (!t.registers_fenced)
      fail("wgmma: accumulators used without wgmma_fence since the thread last owned them");
    acc.registers[lane] = d;
    for (int i = 0; i < n / 2; i++) {
      const layout::RowCol p = layout::wgmma_c(lane, i);
      acc.value[static_cast<size_t>(p.row) * n + p.col] = d[i];
      std::memcpy(&d[i], &kPoison, 4);
    }
  }
  if (++w.issued == 128) {
    issued_by_all(block, group, sequence);
    wake_all(g.waiters);
  }
}
void wgmma_commit() {
  collective("wgmma_commit", [](Warp&) {});
  me().multiply_groups.push_back(me().multiplies);
}
void wgmma_wait(int n) {
  collective("wgmma_wait", [](Warp&) {});
  Thread& t = me();
  Block& block = *t.block;
  const int group = t.index / 128, lane = t.index % 128;
  WarpGroup& g = block.groups[group];
  long upto = t.multiplies_waited;
  for (; static_cast<int>(t.multiply_groups.size()) > n; t.multiply_groups.pop_front())
    upto = t.multiply_groups.front();
  while (upto > g.complete && (g.end() < upto || g.at(upto - 1).issued < 128))
    block_on(g.waiters, "wgmma_wait, for other warps to issue the multiply");
  for (long i = t.multiplies_waited; i < upto; i++) {
    const Multiply& w = g.at(i);
    if (w.a_in_registers &&
        std::memcmp(w.a_fragments[lane].registers, w.a_fragments[lane].value, 16))
      fail("wgmma: operand A's registers were modified while the multiply was in flight");
  }
  t.multiplies_waited = upto;
  retire(block, group, upto);
  const Epoch done = epoch_of(block, group, upto - 1);
  if (upto && !knows(*t.known, done)) {
    auto c = std::make_shared<Clock>(*t.known);
    (*c)[done.agent] = done.time;
    t.known = c;
  }
  // Hands back the registers whose last multiply has completed.
  for (size_t i = 0; i < g.accs.size(); i++) {
    Accumulator& acc = *g.accs[i];
    if (!acc.registers[lane] || acc.last >= upto) continue;
    for (int j = 0; j < acc.n / 2; j++) {
      uint32_t v;
      std::memcpy(&v, &acc.registers[lane][j], 4);
      if (v != kPoison)
        fail("accumulator register %d was modified while its multiply was in flight", j);
      const layout::RowCol p = layout::wgmma_c(lane, j);
      acc.registers[lane][j] = acc.value[static_cast<size_t>(p.row) * acc.n + p.col];
    }
    acc.registers[lane] = nullptr, t.registers_fenced = false;
    if (++acc.returned == 128) g.accs.erase(g.accs.begin() + static_cast<long>(i--));
  }
  long oldest = g.complete;  // forget what every thread has waited for
  for (int l = 0; l < 128 && group * 128 + l < static_cast<int>(block.threads.size()); l++)
    oldest = std::min(oldest, block.threads[group * 128 + l].multiplies_waited);
  while (g.base < oldest) g.queue.pop_front(), g.base++;
}
void check_exit_multiplies(Thread& t) {
  if (t.multiplies > t.multiplies_waited) fail("thread exits with multiplies not waited for");
}
}  // namespace fusebench::sim
