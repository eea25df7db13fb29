// What the bindings of the CUDA ops share: checks of the operands, device, stream, outputs.
// With FUSEBENCH_SIM they serve tensors on the CPU, whose kernels the simulator runs.
#pragma once
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "../cuda/ops.h"

#ifdef FUSEBENCH_SIM
#define FUSEBENCH_CUDA_KEY CPU
#else
#define FUSEBENCH_CUDA_KEY CUDA
// Lives in libtorch_cuda: weak, so that this module also loads under a torch without CUDA.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t, void**);
#endif

namespace fusebench::cuda {
using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using MaybeTensor = std::optional<Tensor>;
using MaybeString = std::optional<std::string>;

inline std::string shape_text(const std::vector<int64_t>& shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); i++) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}
inline std::vector<int64_t> shape_of(const Tensor& t) {
  std::vector<int64_t> shape;
  for (int64_t i = 0; i < t.dim(); i++) shape.push_back(t.size(i));
  return shape;
}
inline const char* dtype_name(ScalarType t) {
  switch (t) {
    case ScalarType::BFloat16:
      return "bfloat16";
    case ScalarType::Half:
      return "float16";
    case ScalarType::Float:
      return "float32";
    case ScalarType::Double:
      return "float64";
    case ScalarType::Long:
      return "int64";
    case ScalarType::Int:
      return "int32";
    default:
      return "another dtype";
  }
}

// One call of an op: its name for errors, and the device, dtype and stream of its first operand.
class CudaCall {
 public:
  CudaCall(const char* op, const char* name, const Tensor& first)
      : op_(op),
        first_(first),
        dtype_(first.scalar_type())
#ifndef FUSEBENCH_SIM
        ,
        guard_(first.get_device_index())
#endif
  {
    if (dtype_ != ScalarType::BFloat16 && dtype_ != ScalarType::Half)
      fail(name, std::string("dtype ") + dtype_name(dtype_), "bfloat16 or float16");
    const int arch = current_arch();
    if (arch < 80)
      fail("the GPU",
           "compute capability " + std::to_string(arch / 10) + "." + std::to_string(arch % 10),
           "8.0 (Ampere) or later");
  }

  [[noreturn]] void fail(const char* name, const std::string& got, const std::string& want) const {
    STD_TORCH_CHECK(false, op_, " (cuda): ", name, ": got ", got, ", accepted: ", want);
    throw 0;  // not reached: the check above throws
  }
  void require(bool ok, const char* name, const std::string& got, const std::string& want) const {
    if (!ok) fail(name, got, want);
  }

  DType dtype() const {
    return dtype_ == ScalarType::BFloat16 ? DType::kBFloat16 : DType::kFloat16;
  }
  void* stream() const {
    void* s = nullptr;
#ifndef FUSEBENCH_SIM
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(first_.get_device_index(), &s));
#endif
    return s;
  }

  // t as the kernels take it (contiguous), once its shape, dtype and device are right.
  Tensor operand(const char* name, const Tensor& t, const std::vector<int64_t>& shape) const {
    return operand(name, t, shape, dtype_);
  }
  Tensor operand(const char* name, const Tensor& t, const std::vector<int64_t>& shape,
                 ScalarType dtype) const {
    check(name, t, dtype);
    check_shape(name, t, shape);
    return contiguous(t);
  }
  MaybeTensor operand(const char* name, const MaybeTensor& t,
                      const std::vector<int64_t>& shape) const {
    return t ? MaybeTensor(operand(name, *t, shape)) : std::nullopt;
  }
  MaybeTensor operand(const char* name, const MaybeTensor& t, const std::vector<int64_t>& shape,
                      ScalarType dtype) const {
    return t ? MaybeTensor(operand(name, *t, shape, dtype)) : std::nullopt;
  }
  void check(const char* name, const Tensor& t, ScalarType dtype) const {
    require(t.scalar_type() == dtype, name, std::string("dtype ") + dtype_name(t.scalar_type()),
            dtype_name(dtype));
    require(t.is_cuda() == first_.is_cuda() && t.get_device_index() == first_.get_device_index(),
            name, "a tensor on another device", "the device of the first operand");
  }
  void check_shape(const char* name, const Tensor& t, const std::vector<int64_t>& shape) const {
    require(shape_of(t) == shape, name, "shape " + shape_text(shape_of(t)), shape_text(shape));
  }
  void check_rank(const char* name, const Tensor& t, int64_t rank, const char* meaning) const {
    require(t.dim() == rank, name, "shape " + shape_text(shape_of(t)), meaning);
  }

  // Sizes of the kernels are 32 bits wide; offsets are not.
  int size(const char* name, int64_t value) const {
    require(value <= std::numeric_limits<int>::max(), name, "size " + std::to_string(value),
            "at most 2147483647");
    return static_cast<int>(value);
  }

  Tensor empty(const std::vector<int64_t>& shape) const { return empty(shape, dtype_); }
  Tensor empty(const std::vector<int64_t>& shape, ScalarType dtype) const {
    return torch::stable::new_empty(first_, shape, dtype);
  }

  // The norm before an op over rows of `columns` values, with its workspace of row statistics.
  struct NormOperands {
    Norm norm;
    MaybeTensor weight, bias, stats;
  };
  NormOperands norm(const MaybeString& kind, const MaybeTensor& weight, const MaybeTensor& bias,
                    double eps, int64_t rows, int64_t columns) const {
    NormOperands n;
    if (!kind) {
      require(!weight && !bias, weight ? "norm_weight" : "norm_bias", "a tensor",
              "None where norm is None");
      return n;
    }
    require(*kind == "layernorm" || *kind == "rmsnorm", "norm", "'" + *kind + "'",
            "None, 'layernorm' or 'rmsnorm'");
    n.weight = operand("norm_weight", weight, {columns});
    n.bias = operand("norm_bias", bias, {columns});
    n.stats = empty({rows, 2}, ScalarType::Float);
    n.norm = {*kind == "layernorm" ? NormKind::kLayerNorm : NormKind::kRmsNorm, data(n.weight),
              data(n.bias), static_cast<float>(eps), n.stats->data_ptr()};
    return n;
  }

  static const void* data(const MaybeTensor& t) { return t ? t->const_data_ptr() : nullptr; }

 private:
  static Tensor contiguous(const Tensor& t) {
    return t.is_contiguous() ? t : torch::stable::contiguous(t);
  }

  std::string op_;
  Tensor first_;
  ScalarType dtype_;
#ifndef FUSEBENCH_SIM
  torch::stable::accelerator::DeviceGuard guard_;
#endif
};

// Product of all sizes but the last: the rows of a matrix.
inline int64_t rows_of(const Tensor& t) {
  int64_t rows = 1;
  for (int64_t i = 0; i + 1 < t.dim(); i++) rows *= t.size(i);
  return rows;
}
inline std::vector<int64_t> with_last(std::vector<int64_t> shape, int64_t last) {
  shape.back() = last;
  return shape;
}
}  // namespace fusebench::cuda
