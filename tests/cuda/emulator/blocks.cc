// SPDX-License-Identifier: Apache-2.0
// Runs the blocks of an emulated kernel; compiled once, and linked to each kernel's library.
//
// A block runs on one thread of the machine. Each of its CUDA threads is a fiber with a stack of its
// own that runs until it meets a barrier; when all have met it, all go on. Blocks run one after
// another. In which order threads and blocks are taken is for the caller to say: a kernel that lacks
// a barrier, or whose blocks depend on each other, gives other results in another order. By a seed the
// threads of each warp are shuffled between its barriers, and warps run ahead of each other. Shared
// memory starts each block as NaN, so that reading what nobody wrote shows too.
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "cuda.h"

extern char __start_emulated_shared[], __stop_emulated_shared[];
dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {

Shown shown[kMostThreads];
unsigned current;
int order;

namespace {

struct Fiber {
  State state;
  jmp_buf here;
  std::unique_ptr<char[]> stack;  // nobody's pages until they are written
};

constexpr size_t kStack = 128 * 1024;
std::vector<Fiber> fibers;
jmp_buf scheduler;
void (*body)();

}  // namespace

void fail(const char* what) {
  fprintf(stderr, "emulated CUDA: %s\n", what);
  abort();
}

void wait(State state) {
  Fiber& fiber = fibers[current];
  fiber.state = state;
  if (!_setjmp(fiber.here)) _longjmp(scheduler, 1);
}

namespace {

std::vector<unsigned> sequence(unsigned count, unsigned salt) {
  std::vector<unsigned> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0u);
  if (order == 1) std::reverse(numbers.begin(), numbers.end());
  if (order > 1) std::shuffle(numbers.begin(), numbers.end(), std::mt19937(order + salt));
  return numbers;
}

dim3 unflatten(unsigned flat, const dim3& extent) {
  return {flat % extent.x, flat / extent.x % extent.y, flat / extent.x / extent.y};
}

// One call of the body after another: a context costs two system calls, and is made once.
void enter() {
  for (;;) {
    body();
    wait(kDone);
  }
}

[[noreturn]] void start(Fiber& fiber) {
  fiber.stack.reset(new char[kStack]);
  ucontext_t context;
  getcontext(&context);
  context.uc_stack = {fiber.stack.get(), 0, kStack};
  context.uc_link = nullptr;
  makecontext(&context, enter, 0);
  setcontext(&context);
  abort();
}

void resume() {
  if (_setjmp(scheduler)) return;
  if (!fibers[current].stack) start(fibers[current]);
  _longjmp(fibers[current].here, 1);
}

// Let go whoever stands at a barrier that all have reached; say whether somebody may run.
bool release(unsigned begin, unsigned end, State barrier) {
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

void run_block(unsigned threads, unsigned salt) {
  if (fibers.size() < threads) fibers.resize(threads);
  for (unsigned t = 0; t < threads; ++t) fibers[t].state = kReady;
  std::minstd_rand random(order + salt);
  unsigned resting = 0;  // a bit for each warp
  bool ready = true, ran = false;
  for (unsigned round = 0; ready; ++round) {
    if (!ran && order > 1) resting = random();  // the others go as far as their barriers let them
    ready = ran = false;
    for (unsigned t : sequence(threads, salt + round)) {
      if (fibers[t].state != kReady) continue;
      bool rests = resting >> t / kWarp & 1;
      (rests ? ready : ran) = true;
      if (rests) continue;
      current = t;
      threadIdx = unflatten(t, blockDim);
      resume();
    }
    ready |= release(0, threads, kAtBlockBarrier);
    for (unsigned t = 0; t < threads; t += kWarp)
      ready |= release(t, min(t + kWarp, threads), kAtWarpBarrier);
  }
  for (unsigned t = 0; t < threads; ++t)
    if (fibers[t].state != kDone) fail("threads wait at different barriers");
}

void run_threads(unsigned threads, unsigned salt) {
  for (unsigned t : sequence(threads, salt)) {
    threadIdx = unflatten(t, blockDim);
    body();
  }
}

dim3* extents_of(char first) { return first == 'b' ? &gridDim : &blockDim; }

}  // namespace

void set_extents(const TVMFFIAny* given, std::initializer_list<const char*> tags) {
  gridDim = blockDim = {};
  for (const char* tag : tags) {
    dim3* extents = extents_of(tag[0]);
    unsigned extent = static_cast<unsigned>((given++)->v_int64);
    char axis = tag[strlen(tag) - 1];
    (axis == 'x' ? extents->x : axis == 'y' ? extents->y : extents->z) = extent;
  }
}

int run_grid(void (*thread)(), bool barriers) {
  if (!gridDim.x || !gridDim.y || !gridDim.z) return 0;  // as TVM's runtime on a device
  body = thread;
  unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  if (threads > kMostThreads) fail("more than 1024 threads in a block");
  if (gridDim.y > 65535 || gridDim.z > 65535) fail("more than 65535 blocks along y or z");
  for (unsigned block : sequence(gridDim.x * gridDim.y * gridDim.z, 0)) {
    blockIdx = unflatten(block, gridDim);
    memset(__start_emulated_shared, 0xff, __stop_emulated_shared - __start_emulated_shared);
    (barriers ? run_block : run_threads)(threads, block);
  }
  return 0;
}

}  // namespace emulated

ENTRY int __tvm_ffi_emulated_order(void*, const TVMFFIAny* args, int32_t, TVMFFIAny*) {
  emulated::order = static_cast<int>(args[0].v_int64);
  return 0;
}
