// Logical clocks: what is ordered before what, whatever the schedule was.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace fusebench::sim {
// Agents whose effects are ordered: the threads of a block, the multiply pipelines of its warp
// groups, its mbarriers. A thread knows, for each agent, up to which time its effects are ordered
// before the thread. Threads that synchronize come to share one object, so knowledge is immutable.
using Clock = std::vector<uint32_t>;
using ClockRef = std::shared_ptr<const Clock>;

// An effect: who and when.
struct Epoch {
  uint16_t agent = 0;
  uint32_t time = 0;  // 0: none
};

inline bool knows(const Clock& c, Epoch e) { return c[e.agent] >= e.time; }
inline void join(Clock& to, const Clock& from) {
  for (size_t i = 0; i < to.size(); i++) to[i] = std::max(to[i], from[i]);
}
inline void meet(Clock& to, const Clock& from) {
  for (size_t i = 0; i < to.size(); i++) to[i] = std::min(to[i], from[i]);
}
}  // namespace fusebench::sim
