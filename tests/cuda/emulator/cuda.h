// SPDX-License-Identifier: Apache-2.0
// Stands for CUDA's header when generated kernels are compiled by a C++ compiler; see emulator.py.
//
// A block runs on one thread of the machine. Each of its CUDA threads is a fiber with a stack of its
// own that runs until it meets a barrier; when all have met it, all go on. Blocks run one after
// another. In which order threads and blocks are taken is for the caller to say: a kernel that lacks
// a barrier, or whose blocks depend on each other, gives other results in another order. Shared
// memory starts each block as NaN, so that reading what nobody wrote shows too.
#pragma once

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <tvm/ffi/c_api.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

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
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

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
struct alignas(16) double2 { double x, y; };
struct alignas(16) longlong2 { long long x, y; };
struct alignas(16) longlong4 { long long x, y, z, w; };
inline double2 make_double2(double x, double y) { return {x, y}; }
inline longlong2 make_longlong2(long long x, long long y) { return {x, y}; }
inline longlong4 make_longlong4(long long x, long long y, long long z, long long w) {
  return {x, y, z, w};
}
template <class T>
inline T __ldg(const T* place) { return *place; }

extern char __start_emulated_shared[], __stop_emulated_shared[];

namespace emulated {

enum State { kReady, kAtBlockBarrier, kAtWarpBarrier, kDone };

struct Fiber {
  State state;
  jmp_buf here;
  ucontext_t start;
  std::vector<char> stack;
  uint64_t exchanged;
  uint32_t words[6];
};

constexpr size_t kStack = 128 * 1024;
constexpr unsigned kWarp = 32;
inline std::vector<Fiber> fibers;
inline unsigned current;
inline jmp_buf scheduler;
inline void (*body)();
inline int order;  // 0: rising, 1: falling, others: a seed

[[noreturn]] inline void fail(const char* what) {
  fprintf(stderr, "emulated CUDA: %s\n", what);
  abort();
}

inline std::vector<unsigned> sequence(unsigned count, unsigned salt) {
  std::vector<unsigned> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0u);
  if (order == 1) std::reverse(numbers.begin(), numbers.end());
  if (order > 1) std::shuffle(numbers.begin(), numbers.end(), std::mt19937(order + salt));
  return numbers;
}

inline dim3 unflatten(unsigned flat, const dim3& extent) {
  return {flat % extent.x, flat / extent.x % extent.y, flat / extent.x / extent.y};
}

inline void wait(State state) {
  Fiber& fiber = fibers[current];
  fiber.state = state;
  if (!_setjmp(fiber.here)) _longjmp(scheduler, 1);
}

inline void enter() {
  body();
  fibers[current].state = kDone;
  _longjmp(scheduler, 1);
}

inline void start(Fiber& fiber) {
  fiber.state = kReady;
  fiber.stack.resize(kStack);
  getcontext(&fiber.start);
  fiber.start.uc_stack = {fiber.stack.data(), 0, fiber.stack.size()};
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, enter, 0);
}

inline void resume(bool first) {
  if (_setjmp(scheduler)) return;
  if (first) setcontext(&fibers[current].start);
  _longjmp(fibers[current].here, 1);
}

// Let go whoever stands at a barrier that all have reached; say whether somebody may run.
inline bool release(unsigned begin, unsigned end, State barrier) {
  unsigned waiting = 0, done = 0;
  for (unsigned t = begin; t < end; ++t) {
    waiting += fibers[t].state == barrier;
    done += fibers[t].state == kDone;
  }
  if (waiting && waiting + done == end - begin) {
    if (done) fail("a barrier that some threads of the block never reach");
    for (unsigned t = begin; t < end; ++t) fibers[t].state = kReady;
    return true;
  }
  return false;
}

inline void run_block(unsigned threads, unsigned salt) {
  if (fibers.size() < threads) fibers.resize(threads);
  for (unsigned t = 0; t < threads; ++t) start(fibers[t]);
  bool first = true, ready = true;
  for (unsigned round = 0; ready; ++round, first = false) {
    for (unsigned t : sequence(threads, salt + round)) {
      if (fibers[t].state != kReady) continue;
      current = t;
      threadIdx = unflatten(t, blockDim);
      resume(first);
    }
    ready = release(0, threads, kAtBlockBarrier);
    for (unsigned t = 0; t < threads; t += kWarp)
      ready |= release(t, min(t + kWarp, threads), kAtWarpBarrier);
  }
  for (unsigned t = 0; t < threads; ++t)
    if (fibers[t].state != kDone) fail("threads wait at different barriers");
}

template <class Call>
inline void run_grid(Call call, bool barriers) {
  static Call* held;
  held = &call;
  body = [] { (*held)(); };
  unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  if (threads > 1024) fail("more than 1024 threads in a block");
  if (gridDim.y > 65535 || gridDim.z > 65535) fail("more than 65535 blocks along y or z");
  for (unsigned block : sequence(gridDim.x * gridDim.y * gridDim.z, 0)) {
    blockIdx = unflatten(block, gridDim);
    memset(__start_emulated_shared, 0xff, __stop_emulated_shared - __start_emulated_shared);
    if (barriers) {
      run_block(threads, block);
    } else {
      for (unsigned t : sequence(threads, block)) {
        threadIdx = unflatten(t, blockDim);
        call();
      }
    }
  }
}

template <class T>
inline T argument(const TVMFFIAny& any) {
  if constexpr (std::is_pointer_v<T>) return static_cast<T>(any.v_ptr);
  else if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(any.type_index == kTVMFFIFloat ? any.v_float64 : any.v_int64);
  else return static_cast<T>(any.v_int64);
}

inline dim3* extents_of(char first) { return first == 'b' ? &gridDim : &blockDim; }

// Arguments are those of the kernel, then one extent for each of `tags` ("blockIdx.x", ...).
template <class... A, size_t... I>
inline int launch(void (*kernel)(A...), const TVMFFIAny* args, const std::vector<const char*>& tags,
                  bool barriers, std::index_sequence<I...>) {
  gridDim = blockDim = {};
  for (size_t t = 0; t < tags.size(); ++t) {
    dim3* extents = extents_of(tags[t][0]);
    unsigned extent = static_cast<unsigned>(args[sizeof...(A) + t].v_int64);
    (tags[t][strlen(tags[t]) - 1] == 'x' ? extents->x
     : tags[t][strlen(tags[t]) - 1] == 'y' ? extents->y : extents->z) = extent;
  }
  if (!gridDim.x || !gridDim.y || !gridDim.z) return 0;  // as TVM's runtime on a device
  run_grid([&] { kernel(argument<A>(args[I])...); }, barriers);
  return 0;
}

template <class... A>
inline int launch(void (*kernel)(A...), const TVMFFIAny* args, std::vector<const char*> tags,
                  bool barriers) {
  return launch(kernel, args, tags, barriers, std::index_sequence_for<A...>{});
}

template <class T>
inline T exchange(T value, unsigned from) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  unsigned base = current / kWarp * kWarp;
  memcpy(&fibers[current].exchanged, &value, sizeof(T));
  wait(kAtWarpBarrier);
  T found = value;
  if (base + from < blockDim.x * blockDim.y * blockDim.z)
    memcpy(&found, &fibers[base + from].exchanged, sizeof(T));
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
  fibers[current].exchanged = vote != 0;
  wait(kAtWarpBarrier);
  for (unsigned t = base; t < end; ++t) votes |= unsigned(fibers[t].exchanged) << (t - base);
  wait(kAtWarpBarrier);
  return votes;
}

ENTRY int __tvm_ffi_emulated_order(void*, const TVMFFIAny* args, int32_t, TVMFFIAny*) {
  emulated::order = static_cast<int>(args[0].v_int64);
  return 0;
}

// Generated code says `__shared__ alignas(64) float x[256]`, which g++ takes in this form only.
#define alignas(bytes) __attribute__((aligned(bytes)))
