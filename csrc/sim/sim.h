// The simulator seen from outside: its options, a launch, what was counted, and every instruction
// that ptx_sim.h forwards to it.
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace fusebench {
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace sim {
// When asynchronous work takes effect, within what its waits allow.
enum class Timing { kEarly, kLate, kRandom };

struct Options {
  uint64_t seed = 0;  // of scheduling, of random timing, of where shared memory starts
  Timing timing = Timing::kRandom;
  int arch = 80;               // what device_arch() answers
  int multiprocessors = 3;     // what multiprocessors() answers
  int resident = 2;            // blocks that run at the same time
  long max_steps = 100000000;  // switches of one launch before it counts as endless; 0: no limit
};
// At first as FUSEBENCH_SIMULATE_SEED, _TIMING and _ARCH set them.
Options& options();
// What a name stands for; std::invalid_argument, saying whose value it is, where for nothing.
int arch_named(const std::string& argument, const std::string& name);
Timing timing_named(const std::string& argument, const std::string& name);

struct GlobalBuffer {
  const void* data;
  size_t bytes;
  bool writable;
  bool fresh;  // its old contents must not matter, and all of it must be written
};
struct Launch {
  const char* kernel = "kernel";
  std::string described;
  dim3 grid;
  int threads = 32;
  size_t smem_bytes = 0;
  std::vector<GlobalBuffer> buffers;
};
// Runs body as every thread of every block. Throws std::runtime_error at the first fault.
void run(const Launch&, const std::function<void()>& body);

// What the launches of one kernel did since the counters were last cleared.
struct Counters {
  long launches = 0, blocks = 0, switches = 0;
  long read_bytes = 0, read_sectors = 0;  // global; a sector is 32 bytes, counted per warp access
  long write_bytes = 0, write_sectors = 0;
  long shared_wavefronts = 0, shared_conflicts = 0;  // conflicts: wavefronts beyond the least
  long mma = 0, wgmma = 0;                           // instructions, per warp and per warp group
  double tensor_flops = 0;
};
std::map<std::string, Counters>& counters();

// Tensor map of 16-bit elements; dimension 0 is contiguous, strides in bytes.
struct TensorMap {
  uint16_t* base;
  int rank;
  int64_t dims[4], strides[3];
  int box[4];
  uint32_t swizzle;  // as in wgmma's descriptors: 0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes
};
void check_tensor_map(const TensorMap&);  // throws std::invalid_argument

extern dim3 threadIdx, blockIdx, blockDim, gridDim;  // of the running thread

// Place in a kernel's source. As a default argument it is the caller's place.
struct Place {
  const char* file;
  int line;
  bool operator==(Place o) const { return file == o.file && line == o.line; }
  bool operator<(Place o) const { return line != o.line ? line < o.line : file < o.file; }
};

// ------------------------------------------------------------------------------- instructions ---
enum class Type16 { kBf16, kFp16 };
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
void at(Place);  // where the running thread is, for reports
// An accumulator of a multiply in flight holds kPoison; arithmetic on it sets the quiet bit.
constexpr uint32_t kPoison = 0x7fa5c3d1, kQuiet = 0x00400000;
[[noreturn]] void fail_poison();
inline void check_poison(float f) {
  uint32_t v;
  std::memcpy(&v, &f, 4);
  if ((v | kQuiet) == (kPoison | kQuiet)) fail_poison();
}

void global_load(const void* p, void* out, int bytes, bool read_only);
void global_store(void* p, const void* in, int bytes);
float global_atomic_add(float* p, float v);
int global_atomic_add(int* p, int v);

uint32_t shared_base();
void shared_load(uint32_t a, void* out, int bytes);
void shared_store(uint32_t a, const void* in, int bytes);

void cp_async(uint32_t dst, const void* src, int bytes);
void cp_async_commit();
void cp_async_wait(int n);

void sync_warp();
uint32_t shuffle(uint32_t v, int lane, bool exclusive_or);
uint32_t ballot(bool p);
bool elect_one();
void ldmatrix(uint32_t* r, int tiles, bool trans, uint32_t row);
void mma_m16n8k16(Type16, float* d, const uint32_t* a, uint32_t b0, uint32_t b1);

void barrier_sync(int id, int n);  // n 0: the whole block
void barrier_arrive(int id, int n);
void setmaxnreg(int n, bool increase);

void label(uint32_t bar, const char* name, int index);
void mbar_init(uint32_t bar, uint32_t count);
void fence_mbar_init();
void fence_proxy_async();
void mbar_arrive(uint32_t bar, uint32_t tx_bytes);
bool mbar_try_wait(uint32_t bar, uint32_t parity);
void tma_load(uint32_t dst, const TensorMap*, uint32_t bar, const int (&at)[4]);
void tma_store(const TensorMap*, uint32_t src, const int (&at)[4]);
void bulk_commit();
void bulk_wait(int n, bool read_only);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int n);
// a_regs null: a is a descriptor.
void wgmma(Type16, float* d, int n, uint64_t a, const uint32_t* a_regs, uint64_t b, bool trans_b,
           int scale_d);
}  // namespace sim
}  // namespace fusebench
