// Probes of every layout: fragments, ldmatrix, matrix descriptors, swizzles, clipped boxes. In the
// simulator they test csrc/sim/layouts.h; on a GPU (nvcc -arch=sm_90a) they pin it to the hardware.
#include "harness.h"

namespace fusebench::test {
namespace {
// ---------------------------------------------------------------------------- mma and ldmatrix ---
// d[16, 8] = a[16, 16] b: b is [8, 16], or [16, 8] if TRANS, both through shared memory.
template <class T, bool TRANS>
KERNEL(32, 1)
probe_mma(const T* a, const T* b, float* d) {
  const smem_t sa = smem_base(), sb = sa + 512;
  const int lane = lane_id();
  cp_async16(sa + lane * 16, a + lane * 8);
  if (lane < 16) cp_async16(sb + lane * 16, b + lane * 8);
  cp_async_commit();
  cp_async_wait<0>();
  sync_warp();
  uint32_t fa[4], fb[2];
  ldmatrix_x4(fa, sa + lane % 16 * 32 + lane / 16 * 16);
  if (TRANS)
    ldmatrix_x2_trans(fb, sb + lane % 16 * 16);
  else
    ldmatrix_x2(fb, sb + lane % 8 * 32 + lane / 8 % 2 * 16);
  float c[4] = {0, 0, 0, 0};
  mma_m16n8k16<T>(c, fa, fb[0], fb[1]);
  for (int i = 0; i < 4; i++) stg(d + (lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2, c[i]);
}
template <class T, bool TRANS>
void mma_case() {
  Array<T> a(256), b(128);
  Array<float> d(128);
  for (int i = 0; i < 256; i++) a[i] = host_value<T>(small_number(i));
  for (int i = 0; i < 128; i++) b[i] = host_value<T>(small_number(i + 999));
  launch(probe_mma<T, TRANS>, {"probe_mma", dim3(1), 32, 768},
         {reads(a.data(), 256), reads(b.data(), 128), writes(d.data(), 128)}, a.data(), b.data(),
         d.data());
  synchronize();
  for (int m = 0; m < 16; m++)
    for (int n = 0; n < 8; n++) {
      float s = 0;
      for (int k = 0; k < 16; k++)
        s += small_number(m * 16 + k) * small_number(999 + (TRANS ? k * 8 + n : n * 16 + k));
      if (d[m * 8 + n] != s) wrong("d[" + std::to_string(m) + ", " + std::to_string(n) + "]");
    }
}

// --------------------------------------------------------------------------------------- wgmma ---
// d[64, N] = a[64, K] b, K = one swizzled row; b is [N, K] or, if TRANS, [K, N]. A goes through
// registers if RS. Everything comes by TMA, without a swizzle by stores in the plain layout.
template <class T, int N, uint32_t MODE, int TRANS, bool RS>
KERNEL(128, 1)
probe_wgmma(GRID_CONSTANT tensor_map map_a, GRID_CONSTANT tensor_map map_b, const T* a, const T* b,
            float* d) {
  if constexpr (kHasSm90a) {
    constexpr int K = MODE == kSwizzle128 ? 64 : MODE == kSwizzle64 ? 32 : 16, ROW = K * 2;
    constexpr int B_BOXES = TRANS ? (N + 63) / 64 : 1;  // TRANS: boxes of 64 columns, K rows
    const smem_t sa = (smem_base() + 1023) & ~1023u, sb = sa + 64 * 128, bar = sb + 256 * 128;
    const int t = static_cast<int>(threadIdx.x), lane = lane_id(), warp = warp_id();
    if (MODE != kSwizzleNone) {
      if (t == 0) {
        SIM_LABEL(bar, "bar", 0);
        mbar_init(bar, 1);
        fence_mbar_init();
        mbar_arrive_expect_tx(bar, 64 * ROW + B_BOXES * (TRANS ? K * 128 : N * ROW));
        tma_load_2d(sa, &map_a, bar, 0, 0);
        for (int i = 0; i < B_BOXES; i++) tma_load_2d(sb + i * K * 128, &map_b, bar, i * 64, 0);
      }
      sync_block();
      mbar_wait(bar, 0);
    } else {  // core matrices of 8 rows x 16 bytes: chunks 128 bytes apart, row groups 256
      for (int i = t; i < 64 * 2; i += 128)
        sts128(sa + i / 2 / 8 * 256 + i % 2 * 128 + i / 2 % 8 * 16,
               ldg(reinterpret_cast<const uint4*>(a) + i));
      for (int i = t; i < N * 2; i += 128)
        sts128(sb + i / 2 / 8 * 256 + i % 2 * 128 + i / 2 % 8 * 16,
               ldg(reinterpret_cast<const uint4*>(b) + i));
      fence_proxy_async();
      sync_block();
    }
    float acc[N / 2];
    UNROLL
    for (int i = 0; i < N / 2; i++) acc[i] = 1e9f;  // the first multiply overwrites it
    uint32_t fa[K / 16][4];
    if (RS) {
      UNROLL
      for (int k = 0; k < K / 16; k++)
        for (int i = 0; i < 4; i++) {
          const int row = warp * 16 + i % 2 * 8 + lane / 4, col = k * 16 + i / 2 * 8 + lane % 4 * 2;
          fa[k][i] = ldg(reinterpret_cast<const uint32_t*>(a + row * K + col));
        }
    }
    keep(acc);
    wgmma_fence();
    UNROLL
    for (int k = 0; k < K / 16; k++) {
      const uint64_t da =
          make_descriptor(sa + k * 32, 128, MODE == kSwizzleNone ? 256 : 8 * ROW, MODE);
      const uint64_t db =
          TRANS ? make_descriptor(sb + k * 16 * 128, K * 128, 1024, kSwizzle128)
                : make_descriptor(sb + k * 32, 128, MODE == kSwizzleNone ? 256 : 8 * ROW, MODE);
      if constexpr (RS)
        wgmma_rs<T, N, TRANS>(acc, fa[k], db, k > 0);
      else
        wgmma_ss<T, N, TRANS>(acc, da, db, k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    keep(acc);
    UNROLL
    for (int i = 0; i < N / 2; i++)
      stg(d + (warp * 16 + i / 2 % 2 * 8 + lane / 4) * N + i / 4 * 8 + lane % 4 * 2 + i % 2,
          acc[i]);
  }
}
template <class T, int N, uint32_t MODE, int TRANS, bool RS>
void wgmma_case() {
  constexpr int K = MODE == kSwizzle128 ? 64 : MODE == kSwizzle64 ? 32 : 16;
  static_assert(!TRANS || MODE == kSwizzle128, "transposed operands are probed with 128 bytes");
  Array<T> a(64 * K), b(N * K);
  Array<float> d(64 * N);
  for (int i = 0; i < 64 * K; i++) a[i] = host_value<T>(small_number(i));
  for (int i = 0; i < N * K; i++) b[i] = host_value<T>(small_number(i + 12345));
  const tensor_map ma = make_tensor_map<T>(a.data(), {2, {K, 64}, {K * 2}, {K, 64}, MODE});
  const tensor_map mb = TRANS ? make_tensor_map<T>(b.data(), {2, {N, K}, {N * 2}, {64, K}, MODE})
                              : make_tensor_map<T>(b.data(), {2, {K, N}, {K * 2}, {K, N}, MODE});
  launch(probe_wgmma<T, N, MODE, TRANS, RS>,
         {"probe_wgmma", dim3(1), 128, 1024 + 64 * 128 + 256 * 128 + 64},
         {reads(a.data(), a.size()), reads(b.data(), b.size()), writes(d.data(), d.size())}, ma, mb,
         a.data(), b.data(), d.data());
  synchronize();
  for (int m = 0; m < 64; m++)
    for (int n = 0; n < N; n++) {
      float s = 0;
      for (int k = 0; k < K; k++)
        s += small_number(m * K + k) * small_number(12345 + (TRANS ? k * N + n : n * K + k));
      if (d[m * N + n] != s) wrong("d[" + std::to_string(m) + ", " + std::to_string(n) + "]");
    }
}

// --------------------------------------------------------------------------- tensor-map copies ---
// Loads one box of a 4-D tensor that it clips, reads it back by the swizzle's formula into `seen`,
// and stores it to the same place of `out`.
template <uint32_t MODE>
KERNEL(128, 1)
probe_tma(GRID_CONSTANT tensor_map in, GRID_CONSTANT tensor_map out, uint32_t* seen, int x, int y,
          int z, int w) {
  if constexpr (kHasSm90a) {
    constexpr int COLS = MODE == kSwizzle128 ? 64 : MODE == kSwizzle64 ? 32 : 16, ROWS = 8 * 2 * 2;
    constexpr uint32_t MASK = MODE == kSwizzle128  ? 7
                              : MODE == kSwizzle64 ? 3
                              : MODE == kSwizzle32 ? 1
                                                   : 0;
    const smem_t s = (smem_base() + 1023) & ~1023u, bar = s + 8192;
    const int t = static_cast<int>(threadIdx.x);
    if (t == 0) {
      mbar_init(bar, 1);
      fence_mbar_init();
      mbar_arrive_expect_tx(bar, COLS * ROWS * 2);  // the clipped part counts too
      tma_load_4d(s, &in, bar, x, y, z, w);
    }
    sync_block();
    mbar_wait(bar, 0);
    for (int i = t; i < COLS * ROWS / 2; i += 128) {
      const smem_t p = s + i * 4;
      stg(seen + i, lds32(p ^ (p >> 7 & MASK) << 4));
    }
    sync_block();
    if (t == 0) {
      tma_store_4d(&out, s, x, y, z, w);
      bulk_commit();
      bulk_wait_read<0>();
    }
  }
}
template <uint32_t MODE>
void tma_case() {
  constexpr int COLS = MODE == kSwizzle128 ? 64 : MODE == kSwizzle64 ? 32 : 16;
  const int X = 72, Y = 10, Z = 3, W = 3;
  Array<bf16> in(X * Y * Z * W), out(X * Y * Z * W);
  Array<uint32_t> seen(COLS * 32 / 2);
  uint16_t* bits = reinterpret_cast<uint16_t*>(in.data());
  for (int i = 0; i < X * Y * Z * W; i++) bits[i] = static_cast<uint16_t>(i + 1);
  TensorMapShape shape{
      4, {72, 10, 3, 3}, {72 * 2, 72 * 10 * 2, 72 * 10 * 3 * 2}, {COLS, 8, 2, 2}, MODE};
  const tensor_map mi = make_tensor_map<bf16>(in.data(), shape),
                   mo = make_tensor_map<bf16>(out.data(), shape);
  for (int k = 0; k < 3; k++) {
    const int x = k == 0   ? 0
                  : k == 1 ? 40
                           : -8,
              y = k == 0   ? 0
                  : k == 1 ? 5
                           : -3,
              z = k == 1 ? 2 : 0, w = k == 2 ? -1 : k;
    std::memset(out.data(), 0, X * Y * Z * W * 2);
    launch(probe_tma<MODE>, {"probe_tma", dim3(1), 128, 1024 + 8192 + 64},
           {reads(in.data(), in.size()), updates(out.data(), out.size()),
            writes(seen.data(), seen.size())},
           mi, mo, seen.data(), x, y, z, w);
    synchronize();
    const uint16_t *box = reinterpret_cast<uint16_t*>(seen.data()),
                   *stored = reinterpret_cast<uint16_t*>(out.data());
    size_t inside = 0, nonzero = 0;
    for (int i = 0; i < COLS * 32; i++) {
      const int ax = x + i % COLS, ay = y + i / COLS % 8, az = z + i / COLS / 8 % 2,
                aw = w + i / COLS / 16;
      const bool in_tensor =
          ax >= 0 && ax < X && ay >= 0 && ay < Y && az >= 0 && az < Z && aw >= 0 && aw < W;
      const int at = ((aw * Z + az) * Y + ay) * X + ax;
      if (box[i] != (in_tensor ? at + 1 : 0))
        wrong("loaded element " + std::to_string(i) + " of box " + std::to_string(k));
      if (in_tensor && stored[at] != at + 1) wrong("stored element " + std::to_string(at));
      inside += in_tensor;
    }
    for (int i = 0; i < X * Y * Z * W; i++) nonzero += stored[i] != 0;
    if (nonzero != inside) wrong("elements stored outside the box");
  }
}

struct Register {
  Register() {
    auto add = [](const char* name, void (*f)()) { cases().push_back({name, f}); };
    add("mma_bf16", mma_case<bf16, false>);
    add("mma_fp16", mma_case<fp16, false>);
    add("mma_trans_bf16", mma_case<bf16, true>);
    add("mma_trans_fp16", mma_case<fp16, true>);
    add("wgmma_none_32", wgmma_case<bf16, 32, kSwizzleNone, 0, false>);
    add("wgmma_s32_64", wgmma_case<bf16, 64, kSwizzle32, 0, false>);
    add("wgmma_s64_96", wgmma_case<fp16, 96, kSwizzle64, 0, false>);
    add("wgmma_s128_80", wgmma_case<bf16, 80, kSwizzle128, 0, false>);
    add("wgmma_s128_128", wgmma_case<bf16, 128, kSwizzle128, 0, false>);
    add("wgmma_s128_256_fp16", wgmma_case<fp16, 256, kSwizzle128, 0, false>);
    add("wgmma_trans_64", wgmma_case<bf16, 64, kSwizzle128, 1, false>);
    add("wgmma_trans_128", wgmma_case<fp16, 128, kSwizzle128, 1, false>);
    add("wgmma_trans_96", wgmma_case<bf16, 96, kSwizzle128, 1, false>);
    add("wgmma_rs_128", wgmma_case<bf16, 128, kSwizzle128, 0, true>);
    add("wgmma_rs_trans_64", wgmma_case<fp16, 64, kSwizzle128, 1, true>);
    add("tma_none", tma_case<kSwizzleNone>);
    add("tma_s32", tma_case<kSwizzle32>);
    add("tma_s64", tma_case<kSwizzle64>);
    add("tma_s128", tma_case<kSwizzle128>);
  }
} registered;
}  // namespace
}  // namespace fusebench::test

int main(int argc, char** argv) { return fusebench::test::main_of(argc, argv); }
