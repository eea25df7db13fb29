// bf16 and fp16 as bits, and their conversions, where no CUDA header gives them.
#pragma once
#include <cstdint>
#include <cstring>

namespace fusebench {
struct bf16 {
  uint16_t bits;
};
struct fp16 {
  uint16_t bits;
};

inline float bf16_to_float(uint16_t u) {
  const uint32_t v = static_cast<uint32_t>(u) << 16;
  float f;
  std::memcpy(&f, &v, 4);
  return f;
}
inline uint16_t float_to_bf16(float f) {  // to nearest, ties to even; NaN becomes the one NaN
  uint32_t v;
  std::memcpy(&v, &f, 4);
  if ((v & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return static_cast<uint16_t>((v + 0x7fff + (v >> 16 & 1)) >> 16);
}
inline float fp16_to_float(uint16_t u) {
  const uint32_t sign = (u & 0x8000u) << 16, magnitude = u & 0x7fffu;
  uint32_t v;
  float f;
  if (magnitude >= 0x7c00) {
    v = sign | 0x7f800000 | (magnitude & 0x3ff) << 13;
  } else if (magnitude >= 0x400) {
    v = sign | ((magnitude << 13) + (112u << 23));
  } else {  // a multiple of 2^-24
    f = static_cast<float>(magnitude) * 0x1p-24f;
    std::memcpy(&v, &f, 4);
    v |= sign;
  }
  std::memcpy(&f, &v, 4);
  return f;
}
inline uint16_t float_to_fp16(float f) {  // to nearest, ties to even
  uint32_t v;
  std::memcpy(&v, &f, 4);
  const uint16_t sign = static_cast<uint16_t>(v >> 16 & 0x8000);
  v &= 0x7fffffff;
  if (v > 0x7f800000) return 0x7fff;
  if (v >= 0x47800000) return sign | 0x7c00;  // at least 2^16
  if (v < 0x38800000) {                       // below 2^-14: the adder rounds to 2^-24
    float magnitude;
    std::memcpy(&magnitude, &v, 4);
    magnitude += 0.5f;  // one unit in the last place of [0.5, 1) is 2^-24
    std::memcpy(&v, &magnitude, 4);
    return sign | static_cast<uint16_t>(v - 0x3f000000);
  }
  v += 0xfff + (v >> 13 & 1);
  return sign | static_cast<uint16_t>((v - (112u << 23)) >> 13);
}
inline float to_float(float v) { return v; }
inline float to_float(bf16 v) { return bf16_to_float(v.bits); }
inline float to_float(fp16 v) { return fp16_to_float(v.bits); }
}  // namespace fusebench
