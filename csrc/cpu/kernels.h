// What a CPU kernel takes and gives: argument structs on raw pointers, one table of kernels per
// instruction set, and the table in use.
#pragma once
#include <cstddef>
#include <cstdint>

#include "parallel.h"

namespace fusebench {

struct bf16 {
  uint16_t bits;
};

enum class DType { float32, bfloat16 };
enum class Norm { none, layernorm, rmsnorm };

// norm(x) over the last dimension, fused in front of a GEMM. weight and bias may be null.
struct Prologue {
  Norm norm;
  const void* weight;
  const void* bias;
  float eps;
};

struct EmbeddingArgs {
  const int64_t* tokens;        // [batch, seq]
  const void* token_weight;     // [vocab, width]
  const void* position_weight;  // [.., width], its first row is the one of column 0; or null
  void* out;                    // [batch, seq, width]
  int64_t batch, seq, vocab, width;
};

struct LinearArgs {
  const void* x;         // [rows, k]
  const void* weight;    // [n, k]
  const void* packed;    // what pack() made of weight, or null
  const void* bias;      // [n] or null
  const void* residual;  // [rows, n] or null
  void* out;             // [rows, n]
  int64_t rows, n, k;
  Prologue prologue;
};

struct QkvProjArgs {
  const void* x;       // [batch, seq, k]
  const void* weight;  // [(num_heads + 2 * num_kv_heads) * head_dim, k]
  const void* packed;  // what pack() made of weight, or null
  const void* bias;    // or null
  const float* cos;    // [seq, head_dim / 2] or null: no rotation
  const float* sin;
  void *q, *key, *value;  // [batch, num_heads, seq, head_dim], twice [batch, num_kv_heads, ..]
  int64_t batch, seq, k, num_heads, num_kv_heads, head_dim;
  Prologue prologue;
};

struct SwigluFfnArgs {
  const void* x;               // [rows, k]
  const void* w_gate_up;       // [2 * hidden, k], gate rows first
  const void* w_down;          // [n, hidden]
  const void* packed_gate_up;  // what pack() made of the weights, or null
  const void* packed_down;
  const void* b_gate_up;  // or null
  const void* b_down;     // or null
  const void* residual;   // [rows, n] or null
  void* out;              // [rows, n]
  int64_t rows, n, k, hidden;
  Prologue prologue;
};

struct SdpaArgs {
  const void *q, *k, *v;  // [batch, heads, length, head_dim], head_dim contiguous
  void* out;              // [batch, q_len, num_heads, head_dim]
  int64_t q_stride[3], k_stride[3], v_stride[3];  // batch, head, position; in elements
  int64_t batch, num_heads, num_kv_heads, q_len, kv_len, head_dim;
  bool causal;
  float scale;
};

struct Kernels {
  const char* isa;
  // The position of the first token that is out of range, or -1.
  int64_t (*embedding)(DType, const EmbeddingArgs&, const Parallel&);
  void (*qkv_proj)(DType, const QkvProjArgs&, const Parallel&);
  void (*sdpa)(DType, const SdpaArgs&, const Parallel&);
  void (*linear)(DType, const LinearArgs&, const Parallel&);
  void (*swiglu_ffn)(DType, const SwigluFfnArgs&, const Parallel&);
  // A weight [n, k] in the layout of this instruction set's register tile. gate_up: the first half
  // of the rows is the gate and the second half the up projection, and they are paired.
  size_t (*packed_bytes)(DType, int64_t n, int64_t k, bool gate_up);
  void (*pack)(DType, const void* weight, int64_t n, int64_t k, bool gate_up, void* packed,
               const Parallel&);
  // Null if `packed` is what pack() makes of such a weight, else what is wrong with it.
  const char* (*check_packed)(DType, const void* packed, size_t bytes, int64_t n, int64_t k,
                              bool gate_up);
  // Of one thread, measured for about `seconds`: floating-point operations per second on operands
  // of the dtype in registers, and bytes per second read from a buffer of `bytes`.
  double (*peak_flops)(DType, double seconds);
  double (*read_bandwidth)(size_t bytes, double seconds);
};

// The table in use: FUSEBENCH_CPU_ISA if it is set, else the best one this CPU supports. Throws
// std::runtime_error if the variable names one that is unknown or not supported.
const Kernels& kernels();
// Makes `isa` the table in use; throws as kernels() does.
void use_isa(const char* isa);
// The i-th instruction set this library was compiled for, best first; null past the end.
const Kernels* compiled_isa(int i);
bool isa_supported(const char* isa);

}  // namespace fusebench
