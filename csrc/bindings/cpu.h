// What the CPU bindings share: checks that name the argument, dtypes, outputs, torch's threads.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <initializer_list>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "cpu/kernels.h"

namespace fusebench {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Raises "op (cpp): argument got; accepted: wanted" in Python.
template <class Got, class Accepted>
[[noreturn]] void refuse(const char* op, const char* argument, const Got& got,
                         const Accepted& accepted) {
  std::ostringstream message;
  message << op << " (cpp): " << argument << " " << got << "; accepted: " << accepted;
  throw std::runtime_error(message.str());
}

inline std::string shape_of(std::initializer_list<int64_t> sizes) {
  std::string text = "[";
  for (const int64_t size : sizes) {
    if (text.size() > 1) text += ", ";
    text += size < 0 ? "*" : std::to_string(size);
  }
  return text + "]";
}
inline std::string shape_of(const Tensor& t) {
  std::string text = "[";
  for (int64_t i = 0; i < t.dim(); i++) text += (i ? ", " : "") + std::to_string(t.size(i));
  return text + "]";
}

// The dtype all of a call's tensors share: the one of its first.
inline DType dtype_of(const char* op, const char* argument, const Tensor& t) {
  const ScalarType type = t.scalar_type();
  if (type == ScalarType::Float) return DType::float32;
  if (type == ScalarType::BFloat16) return DType::bfloat16;
  refuse(op, argument, "has another dtype", "torch.float32 or torch.bfloat16");
}

// A contiguous tensor of the shape (-1: any size) and dtype that are asked for.
inline Tensor want(const char* op, const char* argument, const Tensor& t, ScalarType dtype,
                   std::initializer_list<int64_t> sizes) {
  bool fits = t.dim() == int64_t(sizes.size());
  for (size_t i = 0; fits && i < sizes.size(); i++) {
    const int64_t size = sizes.begin()[i];
    fits = size < 0 || t.size(int64_t(i)) == size;
  }
  if (!fits) refuse(op, argument, "has shape " + shape_of(t), shape_of(sizes));
  if (!t.is_cpu()) refuse(op, argument, "is on another device", "the CPU");
  if (t.scalar_type() != dtype) {
    refuse(op, argument, "has another dtype",
           dtype == ScalarType::Float  ? "torch.float32"
           : dtype == ScalarType::Long ? "torch.int64"
                                       : "the dtype of the first argument");
  }
  return t.is_contiguous() ? t : torch::stable::contiguous(t);
}
inline OptionalTensor want(const char* op, const char* argument, const OptionalTensor& t,
                           ScalarType dtype, std::initializer_list<int64_t> sizes) {
  if (!t.has_value()) return std::nullopt;
  return want(op, argument, *t, dtype, sizes);
}

inline const void* data_of(const Tensor& t) { return t.const_data_ptr(); }
inline const void* data_of(const OptionalTensor& t) {
  return t.has_value() ? t->const_data_ptr() : nullptr;
}

// A new CPU tensor; one call into torch, where new_empty through the dispatcher takes several.
inline Tensor empty(ScalarType dtype, std::initializer_list<int64_t> sizes,
                    std::initializer_list<int64_t> strides) {
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      int64_t(sizes.size()), sizes.begin(), strides.begin(),
      torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype)),
      aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}
// As `like` but for the last dimension, contiguous.
inline Tensor empty_rows(const Tensor& like, int64_t last) {
  int64_t sizes[16], strides[16], size = last;
  const int64_t dim = like.dim();
  sizes[dim - 1] = last;
  strides[dim - 1] = 1;
  for (int64_t i = dim - 2; i >= 0; i--) {
    sizes[i] = like.size(i);
    strides[i] = size > 0 ? size : 1;
    size *= sizes[i];
  }
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      dim, sizes, strides,
      torch::stable::detail::to<int32_t>(torch::stable::detail::from(like.scalar_type())),
      aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

// x [.., C] as contiguous rows.
struct Rows {
  Tensor x;
  int64_t rows, width;
};
inline Rows rows_of(const char* op, const Tensor& x) {
  if (x.dim() < 1 || x.dim() > 16) refuse(op, "x", "has shape " + shape_of(x), "[.., C]");
  if (!x.is_cpu()) refuse(op, "x", "is on another device", "the CPU");
  if (x.size(x.dim() - 1) == 0) refuse(op, "x", "has width 0", "a last size of at least 1");
  Rows r{x.is_contiguous() ? x : torch::stable::contiguous(x), 1, x.size(x.dim() - 1)};
  for (int64_t i = 0; i + 1 < x.dim(); i++) r.rows *= x.size(i);
  return r;
}
inline OptionalTensor want_like(const char* op, const char* argument, const OptionalTensor& t,
                                const Tensor& x, int64_t last) {
  if (!t.has_value()) return std::nullopt;
  bool fits = t->dim() == x.dim() && t->size(x.dim() - 1) == last;
  for (int64_t i = 0; fits && i + 1 < x.dim(); i++) fits = t->size(i) == x.size(i);
  if (!fits) {
    std::string accepted = "the shape of x but for a last size of " + std::to_string(last);
    refuse(op, argument, "has shape " + shape_of(*t), accepted);
  }
  if (t->scalar_type() != x.scalar_type()) refuse(op, argument, "has another dtype", "x's");
  return t->is_contiguous() ? *t : torch::stable::contiguous(*t);
}

// The prologue, and the tensors it points into.
struct NormArguments {
  OptionalTensor weight, bias;
  Prologue prologue;

  NormArguments(const char* op, const Tensor& x, int64_t width,
                const std::optional<std::string>& norm, const OptionalTensor& norm_weight,
                const OptionalTensor& norm_bias, double eps)
      : weight(want(op, "norm_weight", norm_weight, x.scalar_type(), {width})),
        bias(want(op, "norm_bias", norm_bias, x.scalar_type(), {width})),
        prologue{Norm::none, data_of(weight), data_of(bias), float(eps)} {
    if (!norm.has_value()) {
      if (weight || bias) refuse(op, "norm", "is None with a norm weight or bias", "a norm's name");
    } else if (*norm == "layernorm") {
      prologue.norm = Norm::layernorm;
    } else if (*norm == "rmsnorm") {
      prologue.norm = Norm::rmsnorm;
    } else {
      refuse(op, "norm", "is '" + *norm + "'", "None, 'layernorm', 'rmsnorm'");
    }
  }
};

inline const void* packed_data(const char* op, const char* argument, const OptionalTensor& packed,
                               DType dtype, int64_t n, int64_t k, bool gate_up) {
  if (!packed.has_value()) return nullptr;
  const char* wrong = "is not contiguous";
  if (packed->is_contiguous()) {
    const size_t bytes = size_t(packed->numel()) * packed->element_size();
    wrong = kernels().check_packed(dtype, packed->const_data_ptr(), bytes, n, k, gate_up);
  }
  if (wrong) refuse(op, argument, wrong, "what pack_cpp returned for this weight on this machine");
  return packed->const_data_ptr();
}

// torch's own threads: any other pool would be starved by its spinning workers.
inline Parallel torch_threads() {
  const auto run = [](int workers, void (*body)(void*, int), void* context) {
    torch::stable::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) body(context, int(i));
    });
  };
  return {run, int(torch::stable::get_num_threads())};
}

}  // namespace fusebench
