// One thin wrapper per instruction the kernels use. nvcc sees inline PTX; any other compiler sees
// the simulator's twin of each wrapper (csrc/sim/ptx_sim.h), so one kernel source serves both.
//
// Rules for kernel source (tools/lint_kernels.py checks them):
//   - shared memory is named by 32-bit addresses (smem_t) and touched only through wrappers;
//   - global memory is touched only through ldg, ldg_ro, stg, cp_async16, atomic_add and TMA;
//   - no inline assembly, no intrinsic without a wrapper, no __shared__ variable.
#pragma once
#include <cmath>
#include <cstdint>

namespace fusebench {
using smem_t = uint32_t;  // byte address in the shared window of the block
}

#ifndef __CUDACC__
#include "../sim/ptx_sim.h"
#else
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define DEV __device__ __forceinline__
#define HOST_DEV __host__ __device__ __forceinline__
// `template <...> KERNEL(threads, min_blocks_per_sm) name(...) {...}`
#define KERNEL(threads, min_blocks) __global__ void __launch_bounds__(threads, min_blocks)
#define GRID_CONSTANT const __grid_constant__
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
// Names a barrier in the simulator's reports.
#define SIM_LABEL(addr, name, index) ((void)0)
// For wrappers made of wrappers: hands the caller's line on in the simulator, is nothing here.
#define CALLER
#define PASS_CALLER

namespace fusebench {
using bf16 = __nv_bfloat16;
using fp16 = __half;
using tensor_map = CUtensorMap;

// True where wgmma, setmaxnreg and TMA may be emitted: `if constexpr (kHasSm90a) {...}`.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
inline constexpr bool kHasSm90a = true;
#else
inline constexpr bool kHasSm90a = false;
#endif

// ------------------------------------------------------------------------------- conversions ---
DEV float to_float(float v) { return v; }
DEV float to_float(bf16 v) { return __bfloat162float(v); }
DEV float to_float(fp16 v) { return __half2float(v); }
template <class T>
DEV T from_float(float v) {
  if constexpr (std::is_same<T, bf16>::value)
    return __float2bfloat16_rn(v);
  else if constexpr (std::is_same<T, fp16>::value)
    return __float2half_rn(v);
  else
    return v;
}
// Two 16-bit values in one register, the first in the low half.
template <class T>
DEV uint32_t pack2(float lo, float hi) {
  uint32_t r;
  if constexpr (std::is_same<T, bf16>::value)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
template <class T>
DEV float2 unpack2(uint32_t v) {
  if constexpr (std::is_same<T, bf16>::value)
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
  else
    return __half22float2(*reinterpret_cast<const __half2*>(&v));
}
DEV float bits_to_float(uint32_t v) { return __uint_as_float(v); }
DEV uint32_t float_to_bits(float v) { return __float_as_uint(v); }

// ------------------------------------------------------------------------------- fast maths ---
DEV float ex2(float x) {  // 2^x; relative error 2^-22
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEV float lg2(float x) {  // log2(x)
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEV float rcp(float x) {  // 1/x; one unit in the last place
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEV float rsqrt(float x) {
  float y;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Stops the kernel; the simulator says why.
DEV void trap(const char*) { __trap(); }

// ----------------------------------------------------------------------------- global memory ---
// T is 2, 4, 8 or 16 bytes wide and p is aligned to it.
template <class T>
DEV T ldg(const T* p) {
  return *p;
}
// For memory that nothing writes during the launch.
template <class T>
DEV T ldg_ro(const T* p) {
  return __ldg(p);
}
template <>
DEV bf16 ldg_ro(const bf16* p) {
  return __ldg(p);
}
template <>
DEV fp16 ldg_ro(const fp16* p) {
  return __ldg(p);
}
template <class T>
DEV void stg(T* p, T v) {
  *p = v;
}
DEV float atomic_add(float* p, float v) { return atomicAdd(p, v); }
DEV int atomic_add(int* p, int v) { return atomicAdd(p, v); }

// ----------------------------------------------------------------------------- shared memory ---
// Address of the dynamic shared memory, aligned to 128 bytes and no more.
extern __shared__ __align__(128) uint8_t dynamic_smem_[];
DEV smem_t smem_base() { return static_cast<smem_t>(__cvta_generic_to_shared(dynamic_smem_)); }
DEV uint32_t lds32(smem_t a) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(a) : "memory");
  return v;
}
DEV uint2 lds64(smem_t a) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(a) : "memory");
  return v;
}
DEV uint4 lds128(smem_t a) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(a)
               : "memory");
  return v;
}
DEV void sts32(smem_t a, uint32_t v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(a), "r"(v) : "memory");
}
DEV void sts64(smem_t a, uint2 v) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(a), "r"(v.x), "r"(v.y) : "memory");
}
DEV void sts128(smem_t a, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(a), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

DEV float ldsf(smem_t a) { return bits_to_float(lds32(a)); }
DEV void stsf(smem_t a, float v) { sts32(a, float_to_bits(v)); }

// --------------------------------------------------------------------- asynchronous 16 bytes ---
// Copies the first `bytes` (0..16) of *src and fills the rest with zero; src is not read at 0.
DEV void cp_async16(smem_t dst, const void* src, int bytes = 16) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
               "r"(bytes)
               : "memory");
}
DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N of this thread's newest groups are in flight.
template <int N>
DEV void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// ---------------------------------------------------------- warp: all 32 lanes take part in it ---
DEV void sync_warp() { __syncwarp(); }
template <class T>
DEV T shfl(T v, int lane) {
  return __shfl_sync(~0u, v, lane);
}
template <class T>
DEV T shfl_xor(T v, int mask) {
  return __shfl_xor_sync(~0u, v, mask);
}
DEV uint32_t ballot(bool p) { return __ballot_sync(~0u, p); }
DEV bool elect_one() {  // true in one lane (sm_90)
  uint32_t p;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(p));
  return p != 0;
}
// Four 8x8 tiles of 16-bit values; lane l gives the address of row l % 8 of tile l / 8.
DEV void ldmatrix_x4(uint32_t (&r)[4], smem_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
DEV void ldmatrix_x4_trans(uint32_t (&r)[4], smem_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
DEV void ldmatrix_x2(uint32_t (&r)[2], smem_t row) {  // lanes 0..15 give addresses
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(row)
               : "memory");
}
DEV void ldmatrix_x2_trans(uint32_t (&r)[2], smem_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(row)
               : "memory");
}
// d[16x8] += a[16x16] * b[16x8], T is bf16 or fp16, float32 accumulation.
template <class T>
DEV void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same<T, bf16>::value)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// --------------------------------------------------------------------------- block barriers ---
DEV void sync_block() { __syncthreads(); }
// Barrier `id` (1..15) among n threads (whole warps).
DEV void named_barrier_sync(int id, int n) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}
DEV void named_barrier_arrive(int id, int n) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n) : "memory");
}
}  // namespace fusebench

#include "ptx_sm90.cuh"
#endif  // __CUDACC__

namespace fusebench {
// A value that is the same in all lanes, told to the compiler.
DEV int warp_uniform(int v CALLER) { return shfl(v, 0 PASS_CALLER); }
DEV int lane_id() { return static_cast<int>(threadIdx.x) % 32; }
DEV int warp_id() { return warp_uniform(static_cast<int>(threadIdx.x) / 32); }
DEV float warp_sum(float v CALLER) {
  UNROLL
  for (int m = 16; m; m /= 2) v += shfl_xor(v, m PASS_CALLER);
  return v;
}
DEV float warp_max(float v CALLER) {
  UNROLL
  for (int m = 16; m; m /= 2) v = fmaxf(v, shfl_xor(v, m PASS_CALLER));
  return v;
}
template <class T>
HOST_DEV constexpr T min_of(T a, T b) {
  return a < b ? a : b;
}
template <class T>
HOST_DEV constexpr T max_of(T a, T b) {
  return a < b ? b : a;
}
template <class T>
HOST_DEV constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}
DEV void mbar_wait(smem_t bar, uint32_t parity CALLER) {
  while (!mbar_try_wait(bar, parity PASS_CALLER)) {
  }
}
// Address of byte (row, col) in a tile of 128-byte rows on a 1024-byte boundary with the 128-byte
// swizzle: address bits 9:7 are XORed into bits 6:4.
HOST_DEV smem_t swizzle128(smem_t tile, int row, int col_bytes) {
  const smem_t a = tile + static_cast<smem_t>(row * 128 + col_bytes);
  return a ^ ((a >> 7 & 7) << 4);
}
// Shared-memory matrix descriptor of wgmma. Bits 13:0 address >> 4, 29:16 leading offset >> 4,
// 45:32 stride offset >> 4, 51:49 base offset (0: tiles on 1024-byte boundaries), 63:62 swizzle
// (0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes).
HOST_DEV uint64_t make_descriptor(smem_t a, uint32_t leading_bytes, uint32_t stride_bytes,
                                  uint32_t swizzle) {
  return static_cast<uint64_t>((a & 0x3FFFF) >> 4) |
         static_cast<uint64_t>((leading_bytes & 0x3FFFF) >> 4) << 16 |
         static_cast<uint64_t>((stride_bytes & 0x3FFFF) >> 4) << 32 |
         static_cast<uint64_t>(swizzle) << 62;
}
inline constexpr uint32_t kSwizzleNone = 0, kSwizzle128 = 1, kSwizzle64 = 2, kSwizzle32 = 3;
}  // namespace fusebench
