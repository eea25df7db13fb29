// Hopper's instructions for ptx.cuh: mbarriers, tensor-map copies, warp-group multiplies.
// Included by ptx.cuh for nvcc only.
#pragma once

namespace fusebench {
// ---------------------------------------------------------------------- mbarriers and fences ---
DEV void mbar_init(smem_t b, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(arrivals) : "memory");
}
DEV void fence_mbar_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEV void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEV void mbar_arrive(smem_t b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}
DEV void mbar_arrive_expect_tx(smem_t b, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes)
               : "memory");
}
DEV bool mbar_try_wait(smem_t b, uint32_t parity) {
  uint32_t ok;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(ok)
      : "r"(b), "r"(parity)
      : "memory");
  return ok != 0;
}
template <int N>
DEV void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
DEV void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// ------------------------------------------------- tensor-map copies; x is contiguous, then y..
// ---
DEV void tma_prefetch(const tensor_map* m) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(m) : "memory");
}
#define FUSEBENCH_TMA_LOAD(rank, coords) \
  "cp.async.bulk.tensor." rank           \
  ".shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {" coords "}], [%2];"
DEV void tma_load_2d(smem_t dst, const tensor_map* m, smem_t bar, int x, int y) {
  asm volatile(FUSEBENCH_TMA_LOAD("2d", "%3, %4")::"r"(dst), "l"(m), "r"(bar), "r"(x), "r"(y)
               : "memory");
}
DEV void tma_load_3d(smem_t dst, const tensor_map* m, smem_t bar, int x, int y, int z) {
  asm volatile(FUSEBENCH_TMA_LOAD("3d", "%3, %4, %5")::"r"(dst), "l"(m), "r"(bar), "r"(x), "r"(y),
               "r"(z)
               : "memory");
}
DEV void tma_load_4d(smem_t dst, const tensor_map* m, smem_t bar, int x, int y, int z, int w) {
  asm volatile(FUSEBENCH_TMA_LOAD("4d", "%3, %4, %5, %6")::"r"(dst), "l"(m), "r"(bar), "r"(x),
               "r"(y), "r"(z), "r"(w)
               : "memory");
}
#undef FUSEBENCH_TMA_LOAD
#define FUSEBENCH_TMA_STORE(rank, coords) \
  "cp.async.bulk.tensor." rank ".global.shared::cta.tile.bulk_group [%0, {" coords "}], [%1];"
DEV void tma_store_2d(const tensor_map* m, smem_t src, int x, int y) {
  asm volatile(FUSEBENCH_TMA_STORE("2d", "%2, %3")::"l"(m), "r"(src), "r"(x), "r"(y) : "memory");
}
DEV void tma_store_3d(const tensor_map* m, smem_t src, int x, int y, int z) {
  asm volatile(FUSEBENCH_TMA_STORE("3d", "%2, %3, %4")::"l"(m), "r"(src), "r"(x), "r"(y), "r"(z)
               : "memory");
}
DEV void tma_store_4d(const tensor_map* m, smem_t src, int x, int y, int z, int w) {
  asm volatile(FUSEBENCH_TMA_STORE("4d", "%2, %3, %4, %5")::"l"(m), "r"(src), "r"(x), "r"(y),
               "r"(z), "r"(w)
               : "memory");
}
#undef FUSEBENCH_TMA_STORE
DEV void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until at most N of this thread's newest stores are unfinished; `_read`: still being read.
template <int N>
DEV void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
template <int N>
DEV void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

// --------------------------------------------------------------------- warp-group multiplies ---
DEV void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
DEV void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// Pins registers in place around fence and wait, for the compiler only.
template <int R>
DEV void keep(float (&d)[R]) {
#pragma unroll
  for (int i = 0; i < R; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int R>
DEV void keep(uint32_t (&d)[R]) {
#pragma unroll
  for (int i = 0; i < R; i++) asm volatile("" : "+r"(d[i])::"memory");
}

// d[64xN] (+)= a[64x16] * b[16xN]. scale_d 0 overwrites d. TRANS_B: b lies with N contiguous.
// wgmma_ss reads a from shared memory, wgmma_rs from registers.
template <class T, int N, int TRANS_B = 0>
DEV void wgmma_ss(float (&d)[N / 2], uint64_t a, uint64_t b, int scale_d);
template <class T, int N, int TRANS_B = 0>
DEV void wgmma_rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int scale_d);

#define R8(i)                                                                                 \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define R16(i) R8(i), R8(i + 8)
#define R32(i) R16(i), R16(i + 16)
#define R64(i) R32(i), R32(i + 32)
// Registers of an accumulator of n columns, as constraints and as operand numbers.
#define REGS_32 R16(0)
#define REGS_64 R32(0)
#define REGS_80 R32(0), R8(32)
#define REGS_96 R32(0), R16(32)
#define REGS_128 R64(0)
#define REGS_256 R64(0), R64(64)
#define LIST_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define LIST_64 LIST_32 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define LIST_80 LIST_64 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define LIST_96 LIST_80 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define LIST_128 LIST_96 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define LIST_256                                                                                \
  LIST_128                                                                                      \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,"   \
  "%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106," \
  "%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,"  \
  "%125,%126,%127"
// o0..o5: the numbers of the operands that follow the accumulator's n / 2.
#define WGMMA_ONE(type, name, n, tr, o0, o1, o2, o3, o4, o5)                                       \
  template <>                                                                                      \
  DEV void wgmma_ss<type, n, tr>(float (&d)[n / 2], uint64_t a, uint64_t b, int scale_d) {         \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #o2                                          \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." name "." name             \
                 " {" LIST_##n "}, %" #o0 ", %" #o1 ", p, 1, 1, 0, " #tr ";\n}"                    \
                 : REGS_##n                                                                        \
                 : "l"(a), "l"(b), "r"(scale_d));                                                  \
  }                                                                                                \
  template <>                                                                                      \
  DEV void wgmma_rs<type, n, tr>(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b,            \
                                 int scale_d) {                                                    \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #o5                                          \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." name "." name             \
                 " {" LIST_##n "}, {%" #o0 ",%" #o1 ",%" #o2 ",%" #o3 "}, %" #o4 ", p, 1, 1, " #tr \
                               ";\n}"                                                              \
                 : REGS_##n                                                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale_d));              \
  }
#define WGMMA(n, ...)                        \
  WGMMA_ONE(bf16, "bf16", n, 0, __VA_ARGS__) \
  WGMMA_ONE(bf16, "bf16", n, 1, __VA_ARGS__) \
  WGMMA_ONE(fp16, "f16", n, 0, __VA_ARGS__)  \
  WGMMA_ONE(fp16, "f16", n, 1, __VA_ARGS__)
WGMMA(32, 16, 17, 18, 19, 20, 21)
WGMMA(64, 32, 33, 34, 35, 36, 37)
WGMMA(80, 40, 41, 42, 43, 44, 45)
WGMMA(96, 48, 49, 50, 51, 52, 53)
WGMMA(128, 64, 65, 66, 67, 68, 69)
WGMMA(256, 128, 129, 130, 131, 132, 133)
#undef WGMMA
#undef WGMMA_ONE
#undef R8
#undef R16
#undef R32
#undef R64
#undef REGS_32
#undef REGS_64
#undef REGS_80
#undef REGS_96
#undef REGS_128
#undef REGS_256
#undef LIST_32
#undef LIST_64
#undef LIST_80
#undef LIST_96
#undef LIST_128
#undef LIST_256
}  // namespace fusebench
