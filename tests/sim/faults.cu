// Small kernels with one planted fault each, and right ones that look like them. Every detector of
// the simulator is proven here: test_faults.py says which report each fault must cause.
#include "harness.h"

namespace fusebench::test {
namespace {
constexpr int kThreads = 64;

// --------------------------------------------------------------------------- global memory ---
KERNEL(kThreads, 1)
global_kernel(const float* in, float* out, float* more, int fault) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  float v = ldg(in + i + (fault == 1 ? 1 : 0));
  if (fault == 2) v = ldg(reinterpret_cast<const float*>(reinterpret_cast<const char*>(in) + 2));
  if (fault == 3) stg(const_cast<float*>(in) + i, v);
  if (fault == 4) v += ldg(out + i);
  if (fault == 5 && i == 77) return;
  if (fault == 6) stg(out, v);
  if (fault == 7) v += ldg(more + (i + kThreads) % (2 * kThreads));
  if (fault == 8) v += ldg_ro(more + i);
  if (fault == 9) trap("as asked");
  if (fault == 10) stg(more - 1, v);
  if (fault == 11) v += ldg(more + (i ^ 1));
  stg(more + i, v);
  if (fault != 6) stg(out + i, v);
}
void global_case(int fault) {
  Array<float> in(2 * kThreads), out(2 * kThreads), more(2 * kThreads);
  for (int i = 0; i < 2 * kThreads; i++) in[i] = more[i] = static_cast<float>(i);
  launch(global_kernel, {"global", dim3(2), kThreads},
         {reads(in.data(), in.size()), writes(out.data(), out.size()),
          updates(more.data(), fault == 12 ? 8 : more.size())},
         in.data(), out.data(), more.data(), fault);
  for (int i = 0; i < 2 * kThreads; i++)
    if (out[i] != static_cast<float>(i)) wrong("value");
}
void overlap_case() {
  Array<float> a(256);
  launch(global_kernel, {"global", dim3(2), kThreads},
         {reads(a.data(), 128), writes(a.data() + 64, 128), updates(a.data() + 192, 64)}, a.data(),
         a.data(), a.data(), 0);
}
KERNEL(kThreads, 1) atomic_kernel(float* sum) { atomic_add(sum, 1.f); }
void atomic_case() {
  Array<float> sum(1);
  sum[0] = 0;
  launch(atomic_kernel, {"atomic", dim3(3), kThreads}, {updates(sum.data(), 1)}, sum.data());
  if (sum[0] != 3 * kThreads) wrong("sum");
}

// --------------------------------------------------------------------------- shared memory ---
// Reverses 64 values through shared memory; 32 lanes of a warp exchange theirs first.
KERNEL(kThreads, 1)
shared_kernel(float* data, int fault) {
  const int t = static_cast<int>(threadIdx.x);
  const smem_t s = smem_base();
  if (fault == 1) stsf(s + kThreads * 4 + t * 4, 0.f);
  if (fault == 2) sts64(s + t * 4, make_uint2(0, 0));
  if (fault == 3 && t == 5) return;
  stsf(s + t * 4, ldg(data + t));
  if (fault != 4) sync_warp();
  const float neighbour = ldsf(s + (t ^ 1) * 4);
  if (fault != 5) sync_block();
  if (fault == 6) stsf(s + (t ^ 32) * 4, neighbour);
  if (fault == 7 && t % 2) sync_warp();
  stsf(s + t * 4, ldg(data + t));
  if (fault != 8) sync_block();
  if (fault == 9 && t < 40) sync_block();
  if (fault == 10 && t < 32) sync_block();
  float v = ldsf(s + (kThreads - 1 - t) * 4);
  if (fault == 11 && t % 2) v = shfl(v, t % 32);
  if (fault == 12) named_barrier_sync(1, t < 32 ? 32 : 64);
  if (fault == 13 && t < 32) named_barrier_sync(2, 64);
  if (fault == 14) v += ldsf(s + kThreads * 4 - 4 + 4 * (t == 3));
  stg(data + t, v);
}
void shared_case(int fault) {
  Array<float> data(kThreads);
  for (int i = 0; i < kThreads; i++) data[i] = static_cast<float>(i);
  launch(shared_kernel, {"shared", dim3(1), kThreads, kThreads * 4},
         {updates(data.data(), kThreads)}, data.data(), fault);
  for (int i = 0; i < kThreads; i++)
    if (data[i] != static_cast<float>(kThreads - 1 - i)) wrong("value");
}
KERNEL(kThreads, 1)
uninitialised_kernel(float* out) { stg(out + threadIdx.x, ldsf(smem_base() + threadIdx.x * 4)); }
void uninitialised_case() {
  Array<float> out(kThreads);
  launch(uninitialised_kernel, {"uninitialised", dim3(1), kThreads, 1024},
         {writes(out.data(), kThreads)}, out.data());
}
// Producer warps write, a consumer warp reads, through bar.arrive and bar.sync.
KERNEL(kThreads, 1)
arrive_kernel(float* out, int fault) {
  const int t = static_cast<int>(threadIdx.x);
  const smem_t s = smem_base();
  if (t < 32) {
    if (fault == 1) named_barrier_arrive(1, kThreads);
    stsf(s + t * 4, static_cast<float>(t));
    if (fault != 1) named_barrier_arrive(1, kThreads);
    if (fault == 2) ldsf(s + 128 + t * 4);
    if (fault == 3) named_barrier_arrive(1, kThreads);
  } else {
    if (fault == 2) stsf(s + t * 4, 0.f);
    named_barrier_sync(1, kThreads);
    stg(out + t - 32, ldsf(s + (t - 32) * 4));
  }
}
void arrive_case(int fault) {
  Array<float> out(32);
  launch(arrive_kernel, {"arrive", dim3(1), kThreads, 256}, {writes(out.data(), 32)}, out.data(),
         fault);
  for (int i = 0; i < 32; i++)
    if (out[i] != static_cast<float>(i)) wrong("value");
}

// -------------------------------------------------------------------------------- cp.async ---
// Two stages of 64 x 16 bytes; every thread reads its neighbour's.
KERNEL(kThreads, 1)
copy_kernel(const float* in, float* out, int fault) {
  const int t = static_cast<int>(threadIdx.x);
  const smem_t s = smem_base();
  for (int stage = 0; stage < 2; stage++) {
    const int offset = (stage * kThreads + t) * 4 + (fault == 1 ? 1 : 0);
    cp_async16(s + (stage * kThreads + t) * 16, in + offset, fault == 2 && stage == 1 ? 17 : 16);
    if (fault != 3) cp_async_commit();
  }
  if (fault == 4) sts32(s + t * 16, 0);
  if (fault == 5)
    cp_async_wait<2>();
  else
    cp_async_wait<1>();
  if (fault != 6) sync_block();
  stg(out + t, ldsf(s + (kThreads - 1 - t) * 16));
  if (fault == 7) return;
  cp_async_wait<0>();
  if (fault != 8) sync_block();
  if (fault == 9) cp_async16(s + (kThreads - 1 - t) * 16, in + 8 * kThreads);
  stg(out + kThreads + t, ldsf(s + kThreads * 16 + (kThreads - 1 - t) * 16));
}
void copy_case(int fault) {
  Array<float> in(8 * kThreads), out(2 * kThreads);
  for (int i = 0; i < 8 * kThreads; i++) in[i] = static_cast<float>(i);
  launch(copy_kernel, {"copy", dim3(1), kThreads, 2 * kThreads * 16},
         {reads(in.data(), in.size()), writes(out.data(), out.size())}, in.data(), out.data(),
         fault);
  for (int i = 0; i < 2 * kThreads; i++)
    if (out[i] != static_cast<float>((i / kThreads * kThreads + kThreads - 1 - i % kThreads) * 4))
      wrong("value");
}

// ------------------------------------------------------- mbarriers, tensor maps, multiplies ---
// One stage: TMA loads a and b, one warp group multiplies, TMA stores the 64 x 64 result.
KERNEL(128, 1)
hopper_kernel(GRID_CONSTANT tensor_map map_a, GRID_CONSTANT tensor_map map_b,
              GRID_CONSTANT tensor_map map_c, int fault) {
  const smem_t s = ((smem_base() + 1023) & ~1023u) + (fault == 1 ? 128 : 0);
  const smem_t sa = s, sb = s + 8192, sc = s + 16384, bar = s + 24576;
  const int t = static_cast<int>(threadIdx.x), lane = lane_id(), warp = warp_id();
  const uint32_t mode = fault == 2 ? kSwizzle64 : kSwizzle128;
  if (t == 0) {
    SIM_LABEL(bar, "full", 0);
    if (fault != 3) mbar_init(bar, fault == 4 ? 2 : 1);
    if (fault != 5) fence_mbar_init();
    if (fault == 6) mbar_init(bar, 1);
    mbar_arrive_expect_tx(bar, fault == 7 ? 16383 : fault == 8 ? 16400 : 16384);
    tma_load_2d(sa, &map_a, bar, 0, 0);
    tma_load_2d(fault == 9 ? sa : sb, &map_b, bar, 0, 0);
    if (fault == 10) sts32(bar, 0);
  }
  if (fault != 11) sync_block();
  if (fault != 12) mbar_wait(bar, fault == 13 ? 1 : 0);
  float acc[32];
  for (float& v : acc) v = 0.f;
  uint32_t fa[4] = {0, 0, 0, 0};
  keep(acc);
  if (fault != 14) wgmma_fence();
  for (int k = 0; k < 4; k++) {
    const uint64_t da = make_descriptor(sa + k * 32, 16, 1024, mode);
    const uint64_t db = make_descriptor(sb + (fault == 15 ? 128 : 0) + k * 32, 16, 1024, mode);
    if (fault == 16 && k == 3)
      wgmma_rs<bf16, 64>(acc, fa, db, 1);
    else
      wgmma_ss<bf16, 64>(acc, da, db + (fault == 17 ? lane % 2 * 2 : 0), k > 0);
  }
  wgmma_commit();
  if (fault == 16) fa[1]++, keep(fa);
  if (fault == 18) acc[3] *= 2.f, keep(acc);
  if (fault == 19) sts32(sb + t * 4, 0);
  if (fault != 20 && fault != 21) wgmma_wait<0>();
  keep(acc);
  if (fault == 21) return;
  for (int i = 0; i < 32; i += 2)
    sts32(swizzle128(sc, warp * 16 + i / 2 % 2 * 8 + lane / 4, (i / 4 * 8 + lane % 4 * 2) * 2),
          pack2<bf16>(acc[i], acc[i + 1]));
  if (fault != 22) fence_proxy_async();
  if (fault != 23) sync_block();
  if (t == 0) {
    tma_store_2d(&map_c, sc, 0, 0);
    if (fault != 24) bulk_commit();
    if (fault == 25) sts32(sc, 0);
    if (fault != 24 && fault != 26) bulk_wait_read<0>();
  }
  if (fault == 27 && t < 32) setmaxnreg_dec<232>();
  if (fault == 28) setmaxnreg_inc<32>();
  if (fault == 29 && t == 64) sts32(sc + 64, 0);
  if (fault == 30 && t == 0) mbar_arrive_expect_tx(bar, 64);
}
void hopper_case(int fault) {
  Array<bf16> a(4096), b(4096), c(4096);
  for (int i = 0; i < 4096; i++)
    a[i] = host_value<bf16>(small_number(i)), b[i] = host_value<bf16>(small_number(i + 77));
  const TensorMapShape shape{2, {64, 64}, {128}, {64, 64}, kSwizzle128};
  const tensor_map ma = make_tensor_map<bf16>(a.data(), shape),
                   mb = make_tensor_map<bf16>(b.data(), shape),
                   mc = make_tensor_map<bf16>(c.data(), shape);
  launch(
      hopper_kernel, {"hopper", dim3(1), 128, 1024 + 3 * 8192 + 256},
      {reads(a.data(), fault == 31 ? 4000 : 4096), reads(b.data(), 4096), writes(c.data(), 4096)},
      ma, mb, mc, fault);
}
// Three groups that together want more registers than there are.
KERNEL(384, 1)
registers_kernel() {
  if (threadIdx.x < 128)
    setmaxnreg_dec<40>();
  else
    setmaxnreg_inc<240>();
}
void registers_case() { launch(registers_kernel, {"registers", dim3(1), 384}, {}); }
KERNEL(kThreads, 1)
poll_kernel(int* out) {
  const smem_t s = smem_base();
  if (threadIdx.x == 0) {
    sts32(s, 0);
    while (lds32(s) == 0) {
    }
  }
  stg(out + threadIdx.x, 1);
}
void endless_case() {
  struct Limit {
    long before = std::exchange(sim::options().max_steps, 20000);
    ~Limit() { sim::options().max_steps = before; }
  } limit;
  Array<int> out(kThreads);
  launch(poll_kernel, {"poll", dim3(1), kThreads, 128}, {writes(out.data(), kThreads)}, out.data());
}
void bad_map_case() {
  Array<bf16> a(4096);
  make_tensor_map<bf16>(a.data(), {2, {60, 64}, {120}, {64, 64}, kSwizzle128});
}

struct Register {
  Register() {
    add_all("global", global_case, 13);
    add_all("shared", shared_case, 15);
    add_all("arrive", arrive_case, 4);
    add_all("copy", copy_case, 10);
    add_all("hopper", hopper_case, 32);
    cases().push_back({"overlap", overlap_case});
    cases().push_back({"atomic", atomic_case});
    cases().push_back({"uninitialised", uninitialised_case});
    cases().push_back({"registers", registers_case});
    cases().push_back({"endless", endless_case});
    cases().push_back({"bad_map", bad_map_case});
  }
  static void add_all(const std::string& group, void (*f)(int), int n) {  // 0 has no fault
    for (int i = 0; i < n; i++) cases().push_back({group + std::to_string(i), [f, i] { f(i); }});
  }
} registered;
}  // namespace
}  // namespace fusebench::test

int main(int argc, char** argv) { return fusebench::test::main_of(argc, argv); }
