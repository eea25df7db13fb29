// Where things lie: register fragments, shared-memory descriptors, swizzles, tensor-map boxes. Each
// is written once here, from the tables of the PTX ISA, and tested by itself in tests/sim.
#pragma once
#include <cstdint>

namespace fusebench::sim::layout {
struct RowCol {
  int row, col;
};

// mma.m16n8k16 with 16-bit operands. Register i of a lane holds two values, `half` tells which.
constexpr RowCol mma_a(int lane, int i, int half) {
  return {lane / 4 + i % 2 * 8, lane % 4 * 2 + half + i / 2 * 8};
}
constexpr RowCol mma_b(int lane, int i, int half) {  // row: k
  return {lane % 4 * 2 + half + i * 8, lane / 4};
}
constexpr RowCol mma_c(int lane, int i) { return {lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2}; }

// ldmatrix: the values of a lane in one 8x8 tile. Without .trans they are neighbours in a row.
constexpr RowCol ldmatrix(int lane, int half, bool trans) {
  return trans ? RowCol{lane % 4 * 2 + half, lane / 4} : RowCol{lane / 4, lane % 4 * 2 + half};
}

// wgmma.m64nNk16: register i of thread t (0..127) of a warp group.
constexpr RowCol wgmma_c(int t, int i) {
  return {t / 32 * 16 + i / 2 % 2 * 8 + t % 32 / 4, i / 4 * 8 + t % 4 * 2 + i % 2};
}
constexpr RowCol wgmma_a(int t, int i, int half) {
  return {t / 32 * 16 + i % 2 * 8 + t % 32 / 4, i / 2 * 8 + t % 4 * 2 + half};
}

// Bytes of a swizzled row by mode of the descriptor (0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes).
constexpr int swizzle_bytes(uint32_t mode) {
  return mode == 1 ? 128 : mode == 2 ? 64 : mode == 3 ? 32 : 16;
}
// XORs the 16-byte chunk (bits 6:4) with the row of the pattern (bits 9:7).
constexpr uint32_t swizzle(uint32_t a, uint32_t mode) {
  const uint32_t mask = mode == 1 ? 7 : mode == 2 ? 3 : mode == 3 ? 1 : 0;
  return a ^ (a >> 7 & mask) << 4;
}

// Shared-memory matrix descriptor of wgmma.
struct Descriptor {
  uint32_t start, leading, stride, base_offset, mode;
};
constexpr Descriptor decode(uint64_t d) {
  return {static_cast<uint32_t>(d & 0x3FFF) << 4, static_cast<uint32_t>(d >> 16 & 0x3FFF) << 4,
          static_cast<uint32_t>(d >> 32 & 0x3FFF) << 4, static_cast<uint32_t>(d >> 49 & 7),
          static_cast<uint32_t>(d >> 62)};
}
// Operand with k contiguous: address of the 16-byte chunk `c` (0: k 0..7, 1: k 8..15) of row r.
constexpr uint32_t k_major_chunk(Descriptor d, int r, int c) {
  const uint32_t row = d.start + r / 8 * d.stride + r % 8 * swizzle_bytes(d.mode);
  return swizzle(row + c * (d.mode ? 16 : d.leading), d.mode);
}
// Operand with its rows (m or n) contiguous: address of the chunk of rows 8c..8c+7 at depth k.
constexpr uint32_t mn_major_chunk(Descriptor d, int k, int c) {
  if (!d.mode) return d.start + c * d.stride + k / 8 * d.leading + k % 8 * 16;
  const int chunks = swizzle_bytes(d.mode) / 16;
  return swizzle(d.start + c / chunks * d.leading + c % chunks * 16 + k / 8 * d.stride +
                     k % 8 * swizzle_bytes(d.mode),
                 d.mode);
}

// Bytes a tensor-map load adds to its mbarrier: the whole box, also where the tensor ends inside
// it.
constexpr int box_bytes(const int (&box)[4]) { return box[0] * box[1] * box[2] * box[3] * 2; }
// Shared address of element (column, row) of a box; row counts all dimensions but the first.
constexpr uint32_t box_address(uint32_t smem, const int (&box)[4], uint32_t mode, int row,
                               int col) {
  return swizzle(smem + static_cast<uint32_t>((row * box[0] + col) * 2), mode);
}
}  // namespace fusebench::sim::layout
