// Tiles of 16-bit values in shared memory: rows of ROW_BYTES, whose 16-byte chunks are permuted by
// row so that the 8 rows of an ldmatrix, and the 8 chunks of a row, lie in different banks.
#pragma once
#include "ptx.cuh"

namespace fusebench::cuda {
// Chunks are permuted within groups of MASK + 1. Tiles start on 128-byte boundaries.
template <int ROW_BYTES>
struct Permutation {
  static constexpr int MASK = ROW_BYTES % 128 == 0 ? 7 : 3;
  static_assert(ROW_BYTES % 64 == 0, "rows of whole 64-byte groups");
  DEV static int key(int row) { return MASK == 7 ? row & 7 : row >> 1 & 3; }
};

template <int ROW_BYTES>
DEV smem_t chunk_address(smem_t tile, int row, int chunk) {
  return tile +
         static_cast<smem_t>(row * ROW_BYTES + (chunk ^ Permutation<ROW_BYTES>::key(row)) * 16);
}

// What a lane adds to the address of a tile to name its row in ldmatrix_x4: of a 16 x 16 operand
// whose rows are the multiply's m, or, transposed, its k.
template <int ROW_BYTES>
DEV smem_t rows_lane(smem_t tile) {
  return chunk_address<ROW_BYTES>(tile, lane_id() % 16, lane_id() / 16);
}
// The same for an operand whose rows are the multiply's n: registers 0, 1 hold 8 rows, 2, 3 the
// next 8.
template <int ROW_BYTES>
DEV smem_t columns_lane(smem_t tile) {
  const int lane = lane_id();
  return chunk_address<ROW_BYTES>(tile, lane / 16 * 8 + lane % 8, lane / 8 % 2);
}
// Steps a lane's address to row0 (a multiple of 8) and chunk0 (even). One instruction where both
// are constants: keeping an address for every step would cost the registers of the accumulators.
template <int ROW_BYTES>
DEV smem_t step_to(smem_t lane, int row0, int chunk0) {
  constexpr int kMask = Permutation<ROW_BYTES>::MASK;
  return (lane ^ static_cast<smem_t>((chunk0 & kMask) * 16)) +
         static_cast<smem_t>(row0 * ROW_BYTES + (chunk0 & ~kMask) * 16);
}
}  // namespace fusebench::cuda
