// What a fault report says: kernel, block, thread, source line, and who waits for what.
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "state.h"

namespace fusebench::sim {
std::string format(const char* f, ...) {
  char b[512];
  va_list a;
  va_start(a, f), vsnprintf(b, sizeof b, f, a), va_end(a);
  return b;
}
std::string where(const Place& p) {
  const char* slash = std::strrchr(p.file, '/');
  return format("%s:%d", slash ? slash + 1 : p.file, p.line);
}
void record(const Thread* t, const std::string& message) {
  if (S.failed) return;
  S.failed = true;
  if (t)
    S.failure = format("block (%u, %u, %u), thread %d (warp %d, lane %d), %s: ", t->block->id.x,
                       t->block->id.y, t->block->id.z, t->index, t->index / 32, t->index % 32,
                       where(t->place).c_str());
  S.failure += message;
}
void at(Place p) { S.current->place = p; }
void fail_poison() {
  fail("an accumulator is read while its multiply is in flight (no wgmma wait)");
}

std::string agent_name(const Block& b, int agent) {
  if (b.is_thread(agent)) return format("thread %d", agent);
  if (agent < b.agent_of_barrier(0))
    return format("wgmma of warp group %d", agent - b.agent_of_group(0));
  return "the TMA load of " + b.barriers[agent - b.agent_of_barrier(0)].name;
}

std::string deadlock_report() {
  std::string text = "deadlock:";
  for (auto& b : S.blocks) {
    std::vector<std::pair<std::string, std::string>> lines;  // what is waited for, who waits
    for (size_t w = 0; w < b->warps.size(); w++) {
      std::vector<std::pair<std::string, uint32_t>> states;
      uint32_t exited = 0;
      for (int l = 0; l < 32; l++) {
        const Thread& t = b->threads[w * 32 + l];
        if (t.done) {
          exited |= 1u << l;
          continue;
        }
        std::string s = t.waits ? where(t.place) + ", " + t.waits : "nothing";
        if (t.waits && t.number >= 0) s += format(" %ld", t.number);
        size_t i = 0;
        while (i < states.size() && states[i].first != s) i++;
        if (i == states.size()) states.push_back({s, 0});
        states[i].second |= 1u << l;
      }
      std::string line;
      for (auto& s : states) {
        if (!line.empty()) line += "; ";
        line += s.second == ~0u ? "all lanes wait at " : format("lanes %08x wait at ", s.second);
        line += s.first;
      }
      if (line.empty()) continue;
      if (exited) line += format("; lanes %08x have exited", exited);
      size_t i = 0;
      while (i < lines.size() && lines[i].first != line) i++;
      if (i == lines.size()) lines.push_back({line, ""});
      lines[i].second += format(" %zu", w);
    }
    for (auto& l : lines)
      text +=
          format("\n  block (%u, %u, %u) warp%s: ", b->id.x, b->id.y, b->id.z, l.second.c_str()) +
          l.first;
  }
  for (auto& b : S.blocks) {
    const std::string block = format("\n  block (%u, %u, %u) ", b->id.x, b->id.y, b->id.z);
    for (auto& n : b->named)
      if (n.arrived)
        text += block + format("barrier %d: %d of %d threads have arrived",
                               static_cast<int>(&n - b->named), n.arrived, n.expected);
    for (auto& m : b->barriers)
      if (m.live && !m.waiters.empty())
        text += block + m.name +
                format(": in phase %u, arrivals missing %u of %u, bytes missing %ld", m.phase,
                       m.pending, m.count, static_cast<long>(m.tx));
  }
  return text;
}
}  // namespace fusebench::sim
