// One block of a grid: its threads, the order they run in, __syncthreads, and what can go wrong.
#pragma once
#include <dlfcn.h>
#include <signal.h>
#include <ucontext.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <source_location>

#include "fibers.h"

namespace __attribute__((visibility("hidden"))) cuda_emulator {

struct Place {  // of a call in the kernel, or an offset in this code
  const char* file;
  unsigned line;
  size_t offset = 0;
  constexpr Place(std::source_location at) : file(at.file_name()), line(at.line()) {}
  constexpr Place(const char* file = "", unsigned line = 0, size_t offset = 0)
      : file(file), line(line), offset(offset) {}
};

constexpr int MAX_GROUPS = 32;

struct Words {  // what a lane brings to a collective: one value, or the 12 numbers of an mma
  uint64_t word[6];
};

struct Meeting {  // of a warp: who came, and what each brought
  unsigned present;
  Words words[32];
};

struct Group {  // the lanes of a warp that meet under one mask
  unsigned mask, arrived, meetings;
  Place place;
  Meeting meeting[2];  // by parity: a fast lane brings the next meeting's words while a slow one reads
  char order[2];
};

struct Warp {
  unsigned alive;
  int groups;
  Group group[MAX_GROUPS];
};

struct Block {
  uint3 index;
  dim3 threads, grid;
  int count, alive;
  int queue[MAX_THREADS], queued, first;  // the threads that can run, a ring
  uint64_t random;                        // 0: in order
  int arrived;
  unsigned barriers;
  int votes[2];  // of __syncthreads_count, by parity
  Place place;
  char order[2], ended;
  Fiber main, fiber[MAX_THREADS];
  Warp warp[MAX_THREADS / 32];
  void (*body)(void*);
  void* argument;
  char fault[400];
};

inline Block block;

CUDA_EMULATOR_RUNTIME inline uint64_t draw() {  // xorshift64, Marsaglia 2003
  uint64_t& r = block.random;
  r ^= r << 13, r ^= r >> 7, r ^= r << 17;
  return r;
}

// Records the first fault of the block and leaves it. A place with no file is put as an address in this code, which the
// launch finds the line of.
CUDA_EMULATOR_RUNTIME [[gnu::format(printf, 2, 3)]] inline void fail(const Place& place, const char* format, ...) {
  if (!block.fault[0]) {
    int used = place.offset ? snprintf(block.fault, sizeof block.fault, "+0x%zx: ", place.offset)
                            : snprintf(block.fault, sizeof block.fault, "%s:%u: ", place.file, place.line);
    if (used > 200) used = snprintf(block.fault, sizeof block.fault, "line %u: ", place.line);
    va_list given;
    va_start(given, format);
    used += vsnprintf(block.fault + used, sizeof block.fault - used, format, given);
    va_end(given);
    const uint3 b = block.index, t = self->thread;
    if (used < int(sizeof block.fault))
      snprintf(block.fault + used, sizeof block.fault - used, " (block %u,%u,%u thread %u,%u,%u)", b.x, b.y, b.z, t.x,
               t.y, t.z);
  }
  switch_to(&block.main, true);
}

CUDA_EMULATOR_RUNTIME [[noreturn]] inline void stop(const Place& place, const char* format, const char* what) {
  if (!self) fprintf(stderr, "%s:%u: assertion '%s' fails\n", place.file, place.line, what), abort();  // in no kernel
  fail(place, format, what);
  __builtin_unreachable();
}

// A signal that the kernel's own access raised: told as its fault.
CUDA_EMULATOR_RUNTIME inline void signalled(int number, siginfo_t* info, [[maybe_unused]] void* context) {
  Dl_info code = {};
  dladdr((void*)&signalled, &code);
  size_t at = size_t(code.dli_fbase);
#if defined(__x86_64__)
  at = size_t(((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP]);
#endif
  const size_t accessed = size_t(info->si_addr);
  const bool overflow = self->stack && accessed < size_t(self->stack) && accessed + 4096 >= size_t(self->stack);
  fail({"+", 0, at - size_t(code.dli_fbase)}, "%s",
       overflow             ? "stack overflow: a thread has 256 KiB here"
       : number == SIGILL   ? "an instruction that the processor refuses, such as __builtin_trap"
       : number == SIGFPE   ? "arithmetic that the processor refuses, such as a division of integers by 0"
       : accessed < 65536   ? "an access through a null pointer"
                            : "an access outside of memory, or misaligned");
}

CUDA_EMULATOR_RUNTIME inline void make_ready(int index) {
  block.fiber[index].wait = Wait::nothing;
  int last = (block.first + block.queued++) % MAX_THREADS;
  block.queue[last] = index;
  if (block.random) {
    const int other = (block.first + int(draw() % unsigned(block.queued))) % MAX_THREADS;
    block.queue[last] = block.queue[other];
    block.queue[other] = index;
  }
}

// Runs the next thread that can run; goes back to the launch where none is left.
CUDA_EMULATOR_RUNTIME inline void run_next(const Place& place, bool ends = false) {
  if (block.queued == 0) {
    if (block.alive) fail(place, "deadlock: %d threads wait at a barrier or warp collective that others never reach",
                          block.alive);
    switch_to(&block.main, true);
  }
  Fiber* to = &block.fiber[block.queue[block.first]];
  block.first = (block.first + 1) % MAX_THREADS;
  --block.queued;
  if (to != self) switch_to(to, ends);
}

CUDA_EMULATOR_RUNTIME inline void open_barrier() {  // once every thread that has not ended is there
  if (!block.arrived || block.arrived < block.alive) return;
  block.arrived = 0;
  block.votes[++block.barriers & 1] = 0;
  for (int i = 0; i < block.count; ++i)
    if (block.fiber[i].wait == Wait::barrier) make_ready(i);
}

// __syncthreads: waits for the block's threads, orders their memory, and returns how many voted.
CUDA_EMULATOR_RUNTIME inline int barrier(bool vote, const Place& place) {
  const unsigned parity = block.barriers & 1;
  [[maybe_unused]] char* order = &block.order[parity];  // by parity: a fast thread's next arrival is no part of this one
  if (block.arrived == 0) block.place = place;
  else if (block.place.line != place.line || strcmp(block.place.file, place.file))
    fail(place, "divergent __syncthreads: other threads of the block wait at line %u", block.place.line);
  CUDA_EMULATOR_TSAN(__tsan_release(order);)
  block.votes[parity] += vote;
  ++block.arrived;
  self->wait = Wait::barrier;
  open_barrier();
  run_next(place);
  CUDA_EMULATOR_TSAN(__tsan_acquire(order);)
  return block.votes[parity];
}

}  // namespace cuda_emulator

// What the macro assert calls, under the name that cuda_emulator.h gives it.
extern "C" __attribute__((noreturn, visibility("hidden"))) void cuda_emulator_assert_fail(
    const char* what, const char* file, unsigned line, const char* /*function*/) noexcept {
  cuda_emulator::stop({file, line}, "assertion '%s' fails", what);
}
