// SPDX-License-Identifier: Apache-2.0
// Half-precision numbers of CUDA's headers, the conversions of them that generated code calls, and
// the two instructions that it writes as assembly: see `emulated_assembly` in __init__.py.
#pragma once
#include "cuda.h"

namespace emulated {

inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// The same exponent as float32 and 7 bits of its fraction; to nearest, ties to even.
struct Bfloat16 {
  static uint16_t round(float x) {
    uint32_t bits = bits_of(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (bits + ((bits >> 16) & 1) + 0x7fff) >> 16;
  }
  static float widen(uint16_t half) { return float_of(uint32_t(half) << 16); }
};

// 5 bits of exponent and 10 of fraction; to nearest, ties to even, denormal numbers kept.
struct Float16 {
  static uint16_t round(float x) {
    uint32_t bits = bits_of(x), size = bits & 0x7fffffffu;
    uint16_t sign = (bits >> 16) & 0x8000;
    if (size > 0x7f800000u) return 0x7fff;
    if (size >= 0x477ff000u) return sign | 0x7c00;
    if (size < 0x38800000u) return sign | uint16_t(std::nearbyint(float_of(size) * 16777216.0f));
    return sign | ((size + 0xfff + ((size >> 13) & 1) - (112u << 23)) >> 13);
  }
  static float widen(uint16_t half) {
    uint32_t sign = uint32_t(half & 0x8000) << 16, size = half & 0x7fff;
    if (size >= 0x7c00) return float_of(sign | 0x7f800000u | (size & 0x3ff) << 13);
    float value = size < 0x400 ? size / 16777216.0f : float_of((size << 13) + (112u << 23));
    return sign ? -value : value;
  }
};

template <class Kind>
struct Half {
  uint16_t bits;
  Half() = default;
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Half(T x) : bits(Kind::round(float(x))) {}
  operator float() const { return Kind::widen(bits); }
};

template <class Kind>
struct alignas(4) Half2 {
  Half<Kind> x, y;
  Half2() = default;
  Half2(Half<Kind> x, Half<Kind> y) : x(x), y(y) {}
};

inline float half_of(uint32_t pair, unsigned which, float (*widen)(uint16_t)) {
  return widen(which ? pair >> 16 : pair & 0xffff);
}

// As the manual has it: a thread holds rows g and g + 8 of A, columns g of B, and of both the pairs
// t and t + 4 along k, where g is its number over 4 and t the rest; of C rows g and g + 8, columns
// 2 t and 2 t + 1. A warp must come here together.
template <class Kind>
inline void multiply(float* const (&c)[4], const uint32_t (&words)[6]) {
  Shown* warp = &shown[current / kWarp * kWarp];
  memcpy(shown[current].words, words, sizeof words);
  wait(kAtWarpBarrier);
  unsigned lane = current % kWarp, group = lane / 4, member = lane % 4;
  for (unsigned q = 0; q < 4; ++q) {
    unsigned row = group + q / 2 * 8, column = member * 2 + q % 2;
    float sum = *c[q];
    for (unsigned k = 0; k < 16; ++k) {
      uint32_t a = warp[row % 8 * 4 + k % 8 / 2].words[row / 8 + k / 8 * 2];
      uint32_t b = warp[column * 4 + k % 8 / 2].words[4 + k / 8];
      sum += half_of(a, k % 2, Kind::widen) * half_of(b, k % 2, Kind::widen);
    }
    *c[q] = sum;
  }
  wait(kAtWarpBarrier);
}

}  // namespace emulated

#define EMULATED_INSTRUCTIONS(name, Kind)                                                     \
  inline void emulated_mma_sync_aligned_m16n8k16_row_col_f32_##name##_##name##_f32(           \
      float& c0, float& c1, float& c2, float& c3, unsigned a0, unsigned a1, unsigned a2,      \
      unsigned a3, unsigned b0, unsigned b1) {                                                \
    emulated::multiply<emulated::Kind>({&c0, &c1, &c2, &c3}, {a0, a1, a2, a3, b0, b1});       \
  }                                                                                           \
  inline void emulated_cvt_rn_##name##x2_f32(unsigned& pair, float high, float low) {         \
    pair = uint32_t(emulated::Kind::round(high)) << 16 | emulated::Kind::round(low);          \
  }
EMULATED_INSTRUCTIONS(bf16, Bfloat16)
EMULATED_INSTRUCTIONS(f16, Float16)

using nv_bfloat16 = emulated::Half<emulated::Bfloat16>;
using nv_bfloat162 = emulated::Half2<emulated::Bfloat16>;
using half = emulated::Half<emulated::Float16>;
using half2 = emulated::Half2<emulated::Float16>;
using __half = half;
using __half2 = half2;

inline bool __hgt(float a, float b) { return a > b; }
inline bool __hlt(float a, float b) { return a < b; }
inline float __bfloat162float(nv_bfloat16 x) { return x; }
inline nv_bfloat16 __float2bfloat16(float x) { return x; }
inline nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
inline float __half2float(half x) { return x; }
inline half __float2half(float x) { return x; }
inline half __float2half_rn(float x) { return x; }
