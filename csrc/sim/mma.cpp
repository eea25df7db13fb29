// ldmatrix and mma.sync.
#include "float16.h"
#include "layouts.h"
#include "state.h"

namespace fusebench::sim {
void ldmatrix(uint32_t* r, int tiles, bool trans, uint32_t row) {
  Thread& t = me();
  const int l = t.index % 32;
  Warp& w = *t.warp;
  w.slot[l].in[0] = row;
  if (l < tiles * 8) {  // the lane that names a row is taken as its reader
    Block& b = *t.block;
    check_range(b, row, 16, 16, "ldmatrix");
    for (uint32_t i = 0; i < 16; i += 4) {
      check_read(b, row + i, *t.known, t.now(), "ldmatrix", false);
      add_reader(word(b, row + i), *t.known, t.now());
    }
  }
  collective(trans ? "ldmatrix.trans" : "ldmatrix", [&](Warp& w) {
    const Block& b = my_block();
    for (int i = 0; i < tiles; i++) {
      uint32_t rows[8];
      for (int k = 0; k < 8; k++) rows[k] = w.slot[i * 8 + k].in[0];
      const int waves = shared_wavefronts(rows, 8, 16);
      S.count->shared_wavefronts += waves, S.count->shared_conflicts += waves - 1;
      for (int lane = 0; lane < 32; lane++) {
        uint16_t v[2];
        for (int h = 0; h < 2; h++) {
          const layout::RowCol p = layout::ldmatrix(lane, h, trans);
          std::memcpy(&v[h], &b.shared[rows[p.row] + p.col * 2], 2);
        }
        w.slot[lane].out[i] = v[0] | static_cast<uint32_t>(v[1]) << 16;
      }
    }
  });
  for (int i = 0; i < tiles; i++) r[i] = w.slot[l].out[i];
}

namespace {
template <float (*kToFloat)(uint16_t)>
void multiply(Warp& w) {
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < 32; lane++) {
    const Warp::Slot& s = w.slot[lane];
    for (int h = 0; h < 2; h++) {
      for (int i = 0; i < 4; i++) {
        const layout::RowCol p = layout::mma_a(lane, i, h);
        a[p.row][p.col] = kToFloat(static_cast<uint16_t>(s.in[i] >> 16 * h));
      }
      for (int i = 0; i < 2; i++) {
        const layout::RowCol p = layout::mma_b(lane, i, h);
        b[p.row][p.col] = kToFloat(static_cast<uint16_t>(s.in[4 + i] >> 16 * h));
      }
    }
    for (int i = 0; i < 4; i++)
      c[layout::mma_c(lane, i).row][layout::mma_c(lane, i).col] = s.acc[i];
  }
  for (int m = 0; m < 16; m++)
    for (int k = 0; k < 16; k++)
      for (int n = 0; n < 8; n++) c[m][n] += a[m][k] * b[k][n];
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < 4; i++)
      w.slot[lane].acc[i] = c[layout::mma_c(lane, i).row][layout::mma_c(lane, i).col];
}
}  // namespace

void mma_m16n8k16(Type16 type, float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  Warp& w = *me().warp;
  Warp::Slot& s = w.slot[me().index % 32];
  for (int i = 0; i < 4; i++) s.in[i] = a[i], s.acc[i] = d[i];
  s.in[4] = b0, s.in[5] = b1;
  collective("mma", [&](Warp& w) {
    S.count->mma++, S.count->tensor_flops += 2. * 16 * 8 * 16;
    type == Type16::kBf16 ? multiply<bf16_to_float>(w) : multiply<fp16_to_float>(w);
  });
  for (int i = 0; i < 4; i++) d[i] = s.acc[i];
}
}  // namespace fusebench::sim
