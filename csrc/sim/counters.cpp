// Counts sectors and bank conflicts: puts the accesses of the lanes of a warp back together.
#include <algorithm>
#include <map>

#include "state.h"

namespace fusebench::sim {
namespace {
constexpr size_t kLongLog = 4096;

void count_instruction(const Access* const* lanes, int n) {
  Counters& c = *S.count;
  const Access& first = *lanes[0];
  if (first.kind == kShared) {
    uint32_t addresses[32];
    for (int i = 0; i < n; i++) addresses[i] = static_cast<uint32_t>(lanes[i]->address);
    const int least = std::max(1, n * first.bytes / 128);
    const int waves = shared_wavefronts(addresses, n, first.bytes);
    c.shared_wavefronts += waves;
    c.shared_conflicts += std::max(0, waves - least);
    return;
  }
  uint64_t sectors[64];
  int k = 0;
  long bytes = 0;
  for (int i = 0; i < n; i++) {
    if (!lanes[i]->bytes) continue;
    bytes += lanes[i]->bytes;
    sectors[k++] = lanes[i]->address / 32;  // at most 16 bytes, aligned: one sector
  }
  std::sort(sectors, sectors + k);
  const long distinct = std::unique(sectors, sectors + k) - sectors;
  if (first.kind == kGlobalRead)
    c.read_bytes += bytes, c.read_sectors += distinct;
  else
    c.write_bytes += bytes, c.write_sectors += distinct;
}
}  // namespace

// Passes over the 32 banks of 4 bytes. Accesses of 8 and 16 bytes go by half and quarter warps.
int shared_wavefronts(const uint32_t* addresses, int lanes, int bytes) {
  const int per_phase = 128 / std::max(4, bytes);
  int total = 0;
  for (int first = 0; first < lanes; first += per_phase) {
    uint32_t words[32][32];
    int count[32] = {}, most = 0;
    for (int l = first; l < std::min(lanes, first + per_phase); l++)
      for (int i = 0; i < std::max(4, bytes); i += 4) {
        const uint32_t w = (addresses[l] + i) / 4, bank = w % 32;
        if (std::find(words[bank], words[bank] + count[bank], w) == words[bank] + count[bank])
          words[bank][count[bank]++] = w;
        most = std::max(most, count[bank]);
      }
    total += most;
  }
  return total;
}

void log_access(uint64_t address, int bytes, int kind) {
  Warp& w = *me().warp;
  auto& log = w.log[me().index % 32];
  log.push_back({me().place, address, static_cast<uint8_t>(bytes), static_cast<uint8_t>(kind)});
  if (log.size() > kLongLog) flush_accesses(w);
}

// The k-th access at a place belongs together with the k-th of the other lanes.
void flush_accesses(Warp& w) {
  const Access* lanes[32];
  bool alike = true;
  for (int l = 1; l < 32 && alike; l++) {
    alike = w.log[l].size() == w.log[0].size();
    for (size_t i = 0; alike && i < w.log[0].size(); i++)
      alike = w.log[l][i].site == w.log[0][i].site;
  }
  if (alike) {
    for (size_t i = 0; i < w.log[0].size(); i++) {
      for (int l = 0; l < 32; l++) lanes[l] = &w.log[l][i];
      count_instruction(lanes, 32);
    }
  } else {
    std::map<std::pair<Place, int>, std::vector<const Access*>> together;
    for (auto& log : w.log) {
      std::map<Place, int> seen;
      for (auto& a : log) together[{a.site, seen[a.site]++}].push_back(&a);
    }
    for (auto& t : together) count_instruction(t.second.data(), static_cast<int>(t.second.size()));
  }
  for (auto& log : w.log) log.clear();
}
}  // namespace fusebench::sim
