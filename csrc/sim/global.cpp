// Global memory: the buffers declared for a launch, their bounds, and who wrote or read what.
#include <algorithm>
#include <cstring>

#include "state.h"

namespace fusebench::sim {
namespace {
// State of two bytes of a writable buffer.
struct Cell {
  int32_t writer_block = -1, reader_block = -1;
  Epoch writer, reader;
  bool atomic = false, many_blocks_read = false;
};
struct Region {
  const char *begin, *end;
  bool writable, fresh;
  std::vector<Cell> cells;  // of a writable one
};
std::vector<Region> regions;
size_t last_hit;

std::string list_buffers() {
  std::string s;
  for (size_t i = 0; i < regions.size(); i++)
    s += format("%s%zu: %zu bytes%s", i ? ", " : "", i, regions[i].end - regions[i].begin,
                regions[i].writable ? "" : " read-only");
  return s;
}
Region& region_of(const char* p, size_t bytes, const char* what) {
  for (size_t k = 0; k < regions.size(); k++) {
    const size_t i = (last_hit + k) % regions.size();
    if (p >= regions[i].begin && p + bytes <= regions[i].end) return regions[last_hit = i];
  }
  const Region* near = nullptr;
  long distance = 0;
  for (auto& r : regions) {
    const long d = p < r.begin ? r.begin - p : p + bytes - r.end;
    if (!near || d < distance) near = &r, distance = d;
  }
  if (!near) fail("%s: the launch declares no buffers", what);
  fail(
      "%s: %zu bytes at offset %ld of buffer %zu are out of bounds (the buffers of the launch: %s)",
      what, bytes, static_cast<long>(p - near->begin), near - regions.data(),
      list_buffers().c_str());
}
}  // namespace

void begin_global() {
  regions.clear(), last_hit = 0;
  for (const GlobalBuffer& b : S.launch->buffers) {
    const char* p = static_cast<const char*>(b.data);
    Region r{p, p + b.bytes, b.writable, b.fresh, {}};
    if (b.writable) r.cells.resize((b.bytes + 1) / 2);
    if (b.fresh) std::memset(const_cast<char*>(p), 0xff, b.bytes);  // NaN
    regions.push_back(std::move(r));
  }
  for (auto& a : regions)
    for (auto& b : regions)
      if (&a < &b && a.begin < b.end && b.begin < a.end && (a.writable || b.writable))
        record(nullptr, format("buffers %zu and %zu of the launch overlap and one is written",
                               &a - regions.data(), &b - regions.data()));
}

void end_global() {
  for (size_t i = 0; !S.failed && i < regions.size(); i++) {
    if (!regions[i].fresh) continue;
    auto& cells = regions[i].cells;
    auto c =
        std::find_if(cells.begin(), cells.end(), [](const Cell& c) { return c.writer_block < 0; });
    if (c != cells.end())
      record(nullptr,
             format("buffer %zu is declared as written by the launch, but nothing wrote its "
                    "bytes from offset %ld on",
                    i, static_cast<long>(c - cells.begin()) * 2));
  }
  regions.clear();
}

void check_global(const Thread& t, const void* address, size_t bytes, bool write, bool read_only,
                  bool atomic, const char* what) {
  const char* p = static_cast<const char*>(address);
  Region& r = region_of(p, bytes, what);
  const long offset = p - r.begin;
  if (write && !r.writable)
    fail("%s: buffer %zu is declared read-only (offset %ld)", what, &r - regions.data(), offset);
  if (!r.writable) return;
  if (read_only) fail("%s: buffer %zu is written in this launch", what, &r - regions.data());
  const int block = t.block->number;
  for (size_t i = offset / 2; i < (offset + bytes + 1) / 2; i++) {
    Cell& c = r.cells[i];
    auto unordered = [&](int other, Epoch e) {
      return other != block || (e.agent != t.index && !knows(*t.known, e));
    };
    if (!write && r.fresh && c.writer_block < 0)
      fail("%s: buffer %zu is read at offset %ld before anything wrote it", what,
           &r - regions.data(), offset);
    if (c.writer_block >= 0 && !(atomic && c.atomic) && unordered(c.writer_block, c.writer))
      fail(
          "race: %s at offset %ld of buffer %zu is not ordered after a write by block %d, thread "
          "%d",
          what, offset, &r - regions.data(), c.writer_block, c.writer.agent);
    if (write && c.reader_block >= 0 && (c.many_blocks_read || unordered(c.reader_block, c.reader)))
      fail(
          "race: %s at offset %ld of buffer %zu is not ordered after a read by block %d, thread %d",
          what, offset, &r - regions.data(), c.reader_block, c.reader.agent);
    if (write) {
      c.writer_block = block, c.writer = t.now(), c.atomic = atomic;
      c.reader_block = -1, c.many_blocks_read = false;
    } else if (c.reader_block < 0 || !unordered(c.reader_block, c.reader)) {
      c.reader_block = block, c.reader = t.now();
    } else if (c.reader_block != block) {
      c.many_blocks_read = true;
    }
  }
}

namespace {
void check_alignment(const void* p, int bytes, const char* what) {
  if (reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(bytes))
    fail("%s: address %p is not aligned to its %d bytes", what, p, bytes);
}
template <class T>
T atomic_add(T* p, T v) {
  check_alignment(p, sizeof(T), "atomic add");
  check_global(me(), p, sizeof(T), true, false, true, "atomic add");
  const T old = *p;
  *p = old + v;
  maybe_yield(8);
  return old;
}
}  // namespace

void global_load(const void* p, void* out, int bytes, bool read_only) {
  check_alignment(p, bytes, "global load");
  check_global(me(), p, bytes, false, read_only, false, "global load");
  std::memcpy(out, p, bytes);
  log_access(reinterpret_cast<uintptr_t>(p), bytes, kGlobalRead);
  maybe_yield(64);
}
void global_store(void* p, const void* in, int bytes) {
  check_alignment(p, bytes, "global store");
  check_global(me(), p, bytes, true, false, false, "global store");
  std::memcpy(p, in, bytes);
  log_access(reinterpret_cast<uintptr_t>(p), bytes, kGlobalWrite);
  maybe_yield(64);
}
float global_atomic_add(float* p, float v) { return atomic_add(p, v); }
int global_atomic_add(int* p, int v) { return atomic_add(p, v); }
}  // namespace fusebench::sim
