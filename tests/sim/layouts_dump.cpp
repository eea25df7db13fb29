// Prints the tables of csrc/sim/layouts.h for test_layouts.py, one named row of numbers a line.
#include "../../csrc/sim/layouts.h"

#include <cstdio>
#include <initializer_list>

using namespace fusebench::sim;
using layout::RowCol;

int main() {
  auto row = [](const char* name, auto f, int n) {
    std::printf("%s", name);
    for (int i = 0; i < n; i++) {
      const RowCol p = f(i);
      std::printf(" %d,%d", p.row, p.col);
    }
    std::printf("\n");
  };
  for (int lane : {0, 1, 4, 7, 31}) {
    std::printf("lane %d\n", lane);
    row("mma_a", [&](int i) { return layout::mma_a(lane, i / 2, i % 2); }, 8);
    row("mma_b", [&](int i) { return layout::mma_b(lane, i / 2, i % 2); }, 4);
    row("mma_c", [&](int i) { return layout::mma_c(lane, i); }, 4);
    row("ldmatrix", [&](int i) { return layout::ldmatrix(lane, i, false); }, 2);
    row("ldmatrix_trans", [&](int i) { return layout::ldmatrix(lane, i, true); }, 2);
  }
  for (int t : {0, 5, 33, 127}) {
    std::printf("thread %d\n", t);
    row("wgmma_c", [&](int i) { return layout::wgmma_c(t, i); }, 8);
    row("wgmma_a", [&](int i) { return layout::wgmma_a(t, i / 2, i % 2); }, 8);
  }
  for (uint32_t mode : {1u, 2u, 3u}) {
    const uint32_t bytes = static_cast<uint32_t>(layout::swizzle_bytes(mode));
    std::printf("swizzle %u\n", mode);
    for (uint32_t r = 0; r < 8; r++) {  // the chunk at which each chunk of a row ends up
      std::printf("row");
      for (uint32_t c = 0; c < bytes / 16; c++)
        std::printf(" %u", (layout::swizzle(r * bytes + c * 16, mode) - r * bytes) / 16);
      std::printf("\n");
    }
  }
  const layout::Descriptor none{4096, 128, 256, 0, 0}, wide{4096, 8192, 1024, 0, 1};
  std::printf("k_major_none %u %u %u %u\n", layout::k_major_chunk(none, 0, 0),
              layout::k_major_chunk(none, 0, 1), layout::k_major_chunk(none, 7, 0),
              layout::k_major_chunk(none, 8, 0));
  std::printf("k_major_128 %u %u %u %u\n", layout::k_major_chunk(wide, 0, 1),
              layout::k_major_chunk(wide, 1, 0), layout::k_major_chunk(wide, 7, 1),
              layout::k_major_chunk(wide, 8, 0));
  std::printf("mn_major_128 %u %u %u %u\n", layout::mn_major_chunk(wide, 0, 1),
              layout::mn_major_chunk(wide, 1, 0), layout::mn_major_chunk(wide, 8, 0),
              layout::mn_major_chunk(wide, 0, 8));
  const int box[4] = {64, 8, 3, 2};
  std::printf("box_bytes %d\n", layout::box_bytes(box));
  const uint64_t bits = UINT64_C(2) << 62 | UINT64_C(64) << 32 | UINT64_C(8) << 16 | 256;
  const layout::Descriptor d = layout::decode(bits);
  std::printf("descriptor %u %u %u %u %u\n", d.start, d.leading, d.stride, d.base_offset, d.mode);
}
