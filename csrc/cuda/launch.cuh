// launch(): starts a kernel on a GPU, or in the simulator when the host compiler compiles this.
// The buffers a kernel touches are declared with the launch; the simulator holds it to them.
#pragma once
#include <cstddef>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ptx.cuh"

namespace fusebench {
enum class Access { kRead, kWrite, kUpdate };
struct Buffer {
  const void* data;
  size_t bytes;
  Access access;
};
// The kernel only reads n elements at p; writes them all, before reading any; or reads and writes
// (or writes only some). In the simulator `writes` starts as NaN.
template <class T>
Buffer reads(const T* p, int64_t n) {
  return {p, p ? static_cast<size_t>(n) * sizeof(T) : 0, Access::kRead};
}
template <class T>
Buffer writes(T* p, int64_t n) {
  return {p, p ? static_cast<size_t>(n) * sizeof(T) : 0, Access::kWrite};
}
template <class T>
Buffer updates(T* p, int64_t n) {
  return {p, p ? static_cast<size_t>(n) * sizeof(T) : 0, Access::kUpdate};
}

struct LaunchConfig {
  const char* kernel;  // named in errors and reports
  dim3 grid;
  int threads;
  int smem_bytes = 0;
  void* stream = nullptr;  // cudaStream_t
};

inline std::string describe(const LaunchConfig& c) {
  return std::string("kernel ") + c.kernel + " (grid " + std::to_string(c.grid.x) + "x" +
         std::to_string(c.grid.y) + "x" + std::to_string(c.grid.z) + ", " +
         std::to_string(c.threads) + " threads, " + std::to_string(c.smem_bytes) +
         " bytes of shared memory)";
}

// How a tensor map tiles memory: dimension 0 is contiguous; strides are in bytes, strides[i] steps
// dimension i + 1; box is the tile, in elements.
struct TensorMapShape {
  int rank;
  uint64_t dims[4];
  uint64_t strides[3];
  uint32_t box[4];
  uint32_t swizzle;  // kSwizzle*
};

#ifdef __CUDACC__
inline void check_cuda(cudaError_t e, const std::string& what) {
  if (e == cudaSuccess) return;
  (void)cudaGetLastError();  // so that it is not reported again by whoever asks next
  throw std::runtime_error("fusebench: " + what + ": " + cudaGetErrorString(e));
}
inline int device_attribute(cudaDeviceAttr a) {
  int device = 0, value = 0;
  check_cuda(cudaGetDevice(&device), "no current CUDA device");
  check_cuda(cudaDeviceGetAttribute(&value, a, device), "CUDA device attribute");
  return value;
}
// Compute capability of the current device, as 80 or 90.
inline int device_arch() {
  return device_attribute(cudaDevAttrComputeCapabilityMajor) * 10 +
         device_attribute(cudaDevAttrComputeCapabilityMinor);
}
// Whether the sm_90a kernels were compiled and the current device runs them.
inline bool has_sm90a() {
#ifdef FUSEBENCH_SM90A
  return device_arch() == 90;
#else
  return false;
#endif
}
inline int multiprocessors() { return device_attribute(cudaDevAttrMultiProcessorCount); }

template <class... P, class... A>
void launch(void (*kernel)(P...), const LaunchConfig& c, const std::vector<Buffer>&, A&&... args) {
  static_assert(sizeof...(P) == sizeof...(A),
                "launch: the kernel takes another number of arguments");
  if (c.smem_bytes > 48 << 10)
    check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, c.smem_bytes),
               "cannot launch " + describe(c));
  std::tuple<std::decay_t<P>...> values(std::forward<A>(args)...);
  cudaError_t e = std::apply(
      [&](auto&... v) {
        void* pointers[] = {const_cast<void*>(static_cast<const void*>(&v))...};
        return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), c.grid, dim3(c.threads),
                                pointers, c.smem_bytes, static_cast<cudaStream_t>(c.stream));
      },
      values);
  check_cuda(e, "cannot launch " + describe(c));
}

template <class T>
tensor_map make_tensor_map(const T* base, const TensorMapShape& s) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult found;
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000,
                                                cudaEnableDefault, &found),
               "the driver has no cuTensorMapEncodeTiled (CUDA 12 or newer is needed)");
    if (!f) throw std::runtime_error("fusebench: the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<Encode>(f);
  }();
  constexpr CUtensorMapSwizzle swizzles[] = {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                             CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_32B};
  const cuuint32_t step[4] = {1, 1, 1, 1};
  tensor_map m;
  const CUresult r = encode(&m,
                            std::is_same<T, bf16>::value ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                         : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                            s.rank, const_cast<T*>(base), s.dims, s.strides, s.box, step,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, swizzles[s.swizzle],
                            CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS)
    throw std::runtime_error("fusebench: cuTensorMapEncodeTiled refused a tensor map (error " +
                             std::to_string(static_cast<int>(r)) + ")");
  return m;
}
#else
inline int device_arch() { return sim::options().arch; }
inline bool has_sm90a() { return device_arch() == 90; }
inline int multiprocessors() { return sim::options().multiprocessors; }

template <class... P, class... A>
void launch(void (*kernel)(P...), const LaunchConfig& c, const std::vector<Buffer>& buffers,
            A&&... args) {
  static_assert(sizeof...(P) == sizeof...(A),
                "launch: the kernel takes another number of arguments");
  std::tuple<std::decay_t<P>...> values(std::forward<A>(args)...);
  sim::Launch l;
  l.kernel = c.kernel, l.described = describe(c);
  l.grid = c.grid, l.threads = c.threads, l.smem_bytes = c.smem_bytes;
  for (const Buffer& b : buffers)
    if (b.bytes)
      l.buffers.push_back({b.data, b.bytes, b.access != Access::kRead, b.access == Access::kWrite});
  sim::run(l, [&] { std::apply(kernel, values); });
}

template <class T>
tensor_map make_tensor_map(const T* base, const TensorMapShape& s) {
  static_assert(sizeof(T) == 2, "tensor maps of 16-bit elements only");
  tensor_map m{};
  m.base = reinterpret_cast<uint16_t*>(const_cast<T*>(base)), m.rank = s.rank,
  m.swizzle = s.swizzle;
  for (int i = 0; i < 4; i++) m.dims[i] = i < s.rank ? s.dims[i] : 1;
  for (int i = 0; i < 4; i++) m.box[i] = i < s.rank ? s.box[i] : 1;
  for (int i = 0; i < 3; i++) m.strides[i] = i + 1 < s.rank ? s.strides[i] : 0;
  sim::check_tensor_map(m);
  return m;
}
#endif
}  // namespace fusebench
