// The simulator's twins of the wrappers of csrc/cuda/ptx.cuh, for the host compiler.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "float16.h"
#include "sim.h"

#define DEV __attribute__((always_inline)) inline
#define HOST_DEV inline
#define KERNEL(threads, min_blocks) void
#define GRID_CONSTANT const
#define UNROLL
#define NO_UNROLL
#define SIM_LABEL(addr, name, index) ::fusebench::sim::label(addr, name, index)
// Last parameter of a twin: the line of the kernel that calls it.
#define PLACE ::fusebench::sim::Place place = {__builtin_FILE(), __builtin_LINE()}
// The same for wrappers that ptx.cuh builds from others.
#define CALLER , ::fusebench::sim::Place place = {__builtin_FILE(), __builtin_LINE()}
#define PASS_CALLER , place

namespace fusebench {
using tensor_map = sim::TensorMap;
using sim::blockDim;
using sim::blockIdx;
using sim::gridDim;
using sim::threadIdx;
inline constexpr bool kHasSm90a = true;

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct int2 {
  int x, y;
};
DEV uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
DEV uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
DEV float2 make_float2(float x, float y) { return {x, y}; }
DEV float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
DEV int2 make_int2(int x, int y) { return {x, y}; }

template <class T>
inline constexpr sim::Type16 kType16 =
    std::is_same<T, bf16>::value ? sim::Type16::kBf16 : sim::Type16::kFp16;

// ------------------------------------------------------------------------------- conversions ---
template <class T>
DEV T from_float(float v) {
  sim::check_poison(v);
  if constexpr (std::is_same<T, bf16>::value)
    return {float_to_bf16(v)};
  else if constexpr (std::is_same<T, fp16>::value)
    return {float_to_fp16(v)};
  else
    return v;
}
template <class T>
DEV uint32_t pack2(float lo, float hi) {
  return from_float<T>(lo).bits | static_cast<uint32_t>(from_float<T>(hi).bits) << 16;
}
template <class T>
DEV float2 unpack2(uint32_t v) {
  return {to_float(T{static_cast<uint16_t>(v)}), to_float(T{static_cast<uint16_t>(v >> 16)})};
}
DEV float bits_to_float(uint32_t v) {
  float f;
  std::memcpy(&f, &v, 4);
  return f;
}
DEV uint32_t float_to_bits(float f) {
  uint32_t v;
  std::memcpy(&v, &f, 4);
  return v;
}
DEV float ex2(float x) { return std::exp2(x); }
DEV float lg2(float x) { return std::log2(x); }
DEV float rcp(float x) { return 1.f / x; }
DEV float rsqrt(float x) { return 1.f / std::sqrt(x); }

DEV void trap(const char* what, PLACE) { sim::at(place), sim::fail("trap: %s", what); }

// ----------------------------------------------------------------------------- memory access ---
template <class T>
DEV T ldg(const T* p, PLACE) {
  T v;
  sim::at(place), sim::global_load(p, &v, sizeof(T), false);
  return v;
}
template <class T>
DEV T ldg_ro(const T* p, PLACE) {
  T v;
  sim::at(place), sim::global_load(p, &v, sizeof(T), true);
  return v;
}
template <class T>
DEV void stg(T* p, T v, PLACE) {
  if constexpr (std::is_same<T, float>::value) sim::check_poison(v);
  sim::at(place), sim::global_store(p, &v, sizeof(T));
}
template <class T>
DEV T atomic_add(T* p, T v, PLACE) {
  return sim::at(place), sim::global_atomic_add(p, v);
}
DEV smem_t smem_base() { return sim::shared_base(); }
template <class T>
DEV T shared_load_as(smem_t a, sim::Place place) {
  T v;
  sim::at(place), sim::shared_load(a, &v, sizeof(T));
  return v;
}
DEV uint32_t lds32(smem_t a, PLACE) { return shared_load_as<uint32_t>(a, place); }
DEV uint2 lds64(smem_t a, PLACE) { return shared_load_as<uint2>(a, place); }
DEV uint4 lds128(smem_t a, PLACE) { return shared_load_as<uint4>(a, place); }
template <class T>
DEV void shared_store_as(smem_t a, const T& v, sim::Place place) {
  sim::at(place), sim::shared_store(a, &v, sizeof(T));
}
DEV void sts32(smem_t a, uint32_t v, PLACE) { shared_store_as(a, v, place); }
DEV void sts64(smem_t a, uint2 v, PLACE) { shared_store_as(a, v, place); }
DEV void sts128(smem_t a, uint4 v, PLACE) { shared_store_as(a, v, place); }
DEV float ldsf(smem_t a, PLACE) { return bits_to_float(lds32(a, place)); }
DEV void stsf(smem_t a, float v, PLACE) {
  sim::check_poison(v);
  sts32(a, float_to_bits(v), place);
}

DEV void cp_async16(smem_t dst, const void* src, int bytes = 16, PLACE) {
  sim::at(place), sim::cp_async(dst, src, bytes);
}
DEV void cp_async_commit() { sim::cp_async_commit(); }
template <int N>
DEV void cp_async_wait(PLACE) {
  sim::at(place), sim::cp_async_wait(N);
}

// -------------------------------------------------------------------------------------- warp ---
DEV void sync_warp(PLACE) { sim::at(place), sim::sync_warp(); }
template <class T>
DEV T shuffle_as(T v, int lane, bool exclusive_or) {
  static_assert(sizeof(T) == 4, "shuffles move 32 bits");
  uint32_t bits;
  std::memcpy(&bits, &v, 4);
  bits = sim::shuffle(bits, lane, exclusive_or);
  std::memcpy(&v, &bits, 4);
  return v;
}
template <class T>
DEV T shfl(T v, int lane, PLACE) {
  return sim::at(place), shuffle_as(v, lane, false);
}
template <class T>
DEV T shfl_xor(T v, int mask, PLACE) {
  return sim::at(place), shuffle_as(v, mask, true);
}
DEV uint32_t ballot(bool p, PLACE) { return sim::at(place), sim::ballot(p); }
DEV bool elect_one(PLACE) { return sim::at(place), sim::elect_one(); }
DEV void ldmatrix_x4(uint32_t (&r)[4], smem_t row, PLACE) {
  sim::at(place), sim::ldmatrix(r, 4, false, row);
}
DEV void ldmatrix_x4_trans(uint32_t (&r)[4], smem_t row, PLACE) {
  sim::at(place), sim::ldmatrix(r, 4, true, row);
}
DEV void ldmatrix_x2(uint32_t (&r)[2], smem_t row, PLACE) {
  sim::at(place), sim::ldmatrix(r, 2, false, row);
}
DEV void ldmatrix_x2_trans(uint32_t (&r)[2], smem_t row, PLACE) {
  sim::at(place), sim::ldmatrix(r, 2, true, row);
}
template <class T>
DEV void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, PLACE) {
  sim::at(place), sim::mma_m16n8k16(kType16<T>, d, a, b0, b1);
}

// --------------------------------------------------------------------------- block and Hopper ---
DEV void sync_block(PLACE) { sim::at(place), sim::barrier_sync(0, 0); }
DEV void named_barrier_sync(int id, int n, PLACE) { sim::at(place), sim::barrier_sync(id, n); }
DEV void named_barrier_arrive(int id, int n, PLACE) { sim::at(place), sim::barrier_arrive(id, n); }
DEV void mbar_init(smem_t b, uint32_t arrivals, PLACE) {
  sim::at(place), sim::mbar_init(b, arrivals);
}
DEV void fence_mbar_init(PLACE) { sim::at(place), sim::fence_mbar_init(); }
DEV void fence_proxy_async(PLACE) { sim::at(place), sim::fence_proxy_async(); }
DEV void mbar_arrive(smem_t b, PLACE) { sim::at(place), sim::mbar_arrive(b, 0); }
DEV void mbar_arrive_expect_tx(smem_t b, uint32_t bytes, PLACE) {
  sim::at(place), sim::mbar_arrive(b, bytes);
}
DEV bool mbar_try_wait(smem_t b, uint32_t parity, PLACE) {
  return sim::at(place), sim::mbar_try_wait(b, parity);
}
template <int N>
DEV void setmaxnreg_inc(PLACE) {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256, "setmaxnreg takes 24..256 in steps of 8");
  sim::at(place), sim::setmaxnreg(N, true);
}
template <int N>
DEV void setmaxnreg_dec(PLACE) {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256, "setmaxnreg takes 24..256 in steps of 8");
  sim::at(place), sim::setmaxnreg(N, false);
}
DEV void tma_prefetch(const tensor_map*) {}
DEV void tma_load_2d(smem_t dst, const tensor_map* m, smem_t bar, int x, int y, PLACE) {
  sim::at(place), sim::tma_load(dst, m, bar, {x, y, 0, 0});
}
DEV void tma_load_3d(smem_t dst, const tensor_map* m, smem_t bar, int x, int y, int z, PLACE) {
  sim::at(place), sim::tma_load(dst, m, bar, {x, y, z, 0});
}
DEV void tma_load_4d(smem_t dst, const tensor_map* m, smem_t bar, int x, int y, int z, int w,
                     PLACE) {
  sim::at(place), sim::tma_load(dst, m, bar, {x, y, z, w});
}
DEV void tma_store_2d(const tensor_map* m, smem_t src, int x, int y, PLACE) {
  sim::at(place), sim::tma_store(m, src, {x, y, 0, 0});
}
DEV void tma_store_3d(const tensor_map* m, smem_t src, int x, int y, int z, PLACE) {
  sim::at(place), sim::tma_store(m, src, {x, y, z, 0});
}
DEV void tma_store_4d(const tensor_map* m, smem_t src, int x, int y, int z, int w, PLACE) {
  sim::at(place), sim::tma_store(m, src, {x, y, z, w});
}
DEV void bulk_commit(PLACE) { sim::at(place), sim::bulk_commit(); }
template <int N>
DEV void bulk_wait_read(PLACE) {
  sim::at(place), sim::bulk_wait(N, true);
}
template <int N>
DEV void bulk_wait(PLACE) {
  sim::at(place), sim::bulk_wait(N, false);
}
DEV void wgmma_fence(PLACE) { sim::at(place), sim::wgmma_fence(); }
DEV void wgmma_commit(PLACE) { sim::at(place), sim::wgmma_commit(); }
template <int N>
DEV void wgmma_wait(PLACE) {
  sim::at(place), sim::wgmma_wait(N);
}
// The compiler must neither keep the registers elsewhere nor move their use across a wait.
template <class T, int R>
DEV void keep(T (&d)[R]) {
  asm volatile("" ::"r"(d) : "memory");
}
template <class T, int N, int TRANS_B = 0>
DEV void wgmma_ss(float (&d)[N / 2], uint64_t a, uint64_t b, int scale_d, PLACE) {
  static_assert(N % 8 == 0 && N >= 8 && N <= 256, "wgmma takes 8..256 columns in steps of 8");
  sim::at(place), sim::wgmma(kType16<T>, d, N, a, nullptr, b, TRANS_B, scale_d);
}
template <class T, int N, int TRANS_B = 0>
DEV void wgmma_rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int scale_d, PLACE) {
  static_assert(N % 8 == 0 && N >= 8 && N <= 256, "wgmma takes 8..256 columns in steps of 8");
  sim::at(place), sim::wgmma(kType16<T>, d, N, 0, a, b, TRANS_B, scale_d);
}
}  // namespace fusebench
#undef PLACE
