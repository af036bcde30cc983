// SPDX-License-Identifier: Apache-2.0
// Stands for CUDA's header when generated kernels are compiled by a C++ compiler; see emulator.py.
// How blocks run is in blocks.cc, which is compiled once and linked to all kernels.
#pragma once

#include <stdint.h>
#include <tvm/ffi/c_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <utility>

#define ENTRY extern "C" __attribute__((visibility("default")))
#define __global__
#define __device__
#define __host__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("emulated_shared")))
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_INF double(INFINITY)
#define CUDART_NAN double(NAN)

using std::max;
using std::min;

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

#define EMULATED_VECTOR(type, name)                                             \
  struct alignas(2 * sizeof(type)) name##2 { type x, y; };                      \
  struct alignas(4 * sizeof(type)) name##4 { type x, y, z, w; };                \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }              \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
EMULATED_VECTOR(float, float)
EMULATED_VECTOR(int, int)
EMULATED_VECTOR(unsigned, uint)
EMULATED_VECTOR(short, short)
EMULATED_VECTOR(unsigned short, ushort)
EMULATED_VECTOR(unsigned char, uchar)
struct alignas(16) double2 { double x, y; };
struct alignas(16) double4 { double x, y, z, w; };
struct alignas(16) longlong2 { long long x, y; };
struct alignas(16) longlong4 { long long x, y, z, w; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
struct alignas(16) ulonglong4 { unsigned long long x, y, z, w; };
inline double2 make_double2(double x, double y) { return {x, y}; }
inline double4 make_double4(double x, double y, double z, double w) { return {x, y, z, w}; }
inline longlong2 make_longlong2(long long x, long long y) { return {x, y}; }
inline longlong4 make_longlong4(long long x, long long y, long long z, long long w) {
  return {x, y, z, w};
}
inline ulonglong2 make_ulonglong2(uint64_t x, uint64_t y) { return {x, y}; }
inline ulonglong4 make_ulonglong4(uint64_t x, uint64_t y, uint64_t z, uint64_t w) {
  return {x, y, z, w};
}
template <class T>
inline T __ldg(const T* place) { return *place; }

namespace emulated {

enum State { kReady, kAtBlockBarrier, kAtWarpBarrier, kDone };

// What a thread shows to the others of its warp.
struct Shown {
  uint64_t exchanged;
  uint32_t words[6];
};

constexpr unsigned kWarp = 32, kMostThreads = 1024;
extern Shown shown[kMostThreads];  // of each thread of the block
extern unsigned current;
extern int order;  // 0: rising, 1: falling, others: a seed

[[noreturn]] void fail(const char* what);
void wait(State state);
void set_extents(const TVMFFIAny* extents, std::initializer_list<const char*> tags);
int run_grid(void (*thread)(), bool barriers);

template <class T>
inline T argument(const TVMFFIAny& any) {
  if constexpr (std::is_pointer_v<T>) return static_cast<T>(any.v_ptr);
  else if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(any.type_index == kTVMFFIFloat ? any.v_float64 : any.v_int64);
  else return static_cast<T>(any.v_int64);
}

// Arguments are those of the kernel, then one extent for each of `tags` ("blockIdx.x", ...).
template <class... A, size_t... I>
inline int launch(void (*kernel)(A...), const TVMFFIAny* args,
                  std::initializer_list<const char*> tags, bool barriers,
                  std::index_sequence<I...>) {
  static void (*held)(A...);
  static const TVMFFIAny* given;
  held = kernel, given = args;
  set_extents(args + sizeof...(A), tags);
  return run_grid([] { held(argument<A>(given[I])...); }, barriers);
}

template <class... A>
inline int launch(void (*kernel)(A...), const TVMFFIAny* args,
                  std::initializer_list<const char*> tags, bool barriers) {
  return launch(kernel, args, tags, barriers, std::index_sequence_for<A...>{});
}

template <class T>
inline T exchange(T value, unsigned from) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  unsigned base = current / kWarp * kWarp;
  memcpy(&shown[current].exchanged, &value, sizeof(T));
  wait(kAtWarpBarrier);
  T found = value;
  if (base + from < blockDim.x * blockDim.y * blockDim.z)
    memcpy(&found, &shown[base + from].exchanged, sizeof(T));
  wait(kAtWarpBarrier);
  return found;
}

}  // namespace emulated

inline void __syncthreads() { emulated::wait(emulated::kAtBlockBarrier); }
inline void __syncwarp(unsigned = ~0u) { emulated::wait(emulated::kAtWarpBarrier); }
inline unsigned __activemask() { return ~0u; }
inline unsigned emulated_lane() { return emulated::current % emulated::kWarp; }
template <class T>
inline T __shfl_sync(unsigned, T value, int from, int width = 32) {
  unsigned lane = emulated_lane();
  return emulated::exchange(value, lane / width * width + from % width);
}
template <class T>
inline T __shfl_down_sync(unsigned, T value, unsigned delta, int width = 32) {
  unsigned lane = emulated_lane();
  return emulated::exchange(value, lane % width + delta < unsigned(width) ? lane + delta : lane);
}
template <class T>
inline T __shfl_up_sync(unsigned, T value, unsigned delta, int width = 32) {
  unsigned lane = emulated_lane();
  return emulated::exchange(value, lane % width >= delta ? lane - delta : lane);
}
template <class T>
inline T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
  return emulated::exchange(value, emulated_lane() ^ unsigned(mask));
}
inline unsigned __popc(unsigned bits) { return __builtin_popcount(bits); }
inline unsigned __ballot_sync(unsigned, unsigned vote) {
  using namespace emulated;
  unsigned base = current / kWarp * kWarp, votes = 0;
  unsigned end = min(base + kWarp, blockDim.x * blockDim.y * blockDim.z);
  shown[current].exchanged = vote != 0;
  wait(kAtWarpBarrier);
  for (unsigned t = base; t < end; ++t) votes |= unsigned(shown[t].exchanged) << (t - base);
  wait(kAtWarpBarrier);
  return votes;
}

// Generated code says `__shared__ alignas(64) float x[256]`, which g++ takes in this form only.
#define alignas(bytes) __attribute__((aligned(bytes)))
