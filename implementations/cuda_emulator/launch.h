// A launch: the blocks of a grid one after another, and what a kernel's parameters are.
#pragma once
#include <numeric>

#include "memory.h"
#include "warp.h"

namespace __attribute__((visibility("hidden"))) cuda_emulator {

CUDA_EMULATOR_RUNTIME inline void run_thread() {
  CUDA_EMULATOR_ASAN(__sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);)
  block.body(block.argument);
  CUDA_EMULATOR_TSAN(__tsan_release(&block.ended);)
  Warp& warp = block.warp[self->warp];
  warp.alive &= ~(1u << self->lane);
  --block.alive;
  self->wait = Wait::ended;
  for (int i = 0; i < warp.groups; ++i) open_group(warp, warp.group[i]);  // who has ended holds no one up
  open_barrier();
  run_next(block.place, true);
  __builtin_trap();
}

CUDA_EMULATOR_RUNTIME inline const char* run_block(size_t shared_bytes) {
  block.count = block.alive = int(block.threads.x * block.threads.y * block.threads.z);
  block.queued = block.first = block.arrived = 0;
  block.barriers = 0;
  block.votes[0] = block.votes[1] = 0;
  char* stacks = map_stacks(block.count);
  if (!stacks || !open_shared(shared_bytes)) return "no memory for the stacks and the shared memory of a block";
  CUDA_EMULATOR_TSAN(block.main.tsan = __tsan_get_current_fiber();)
  for (int i = 0; i < block.count; ++i) {
    Fiber& fiber = block.fiber[i];
    fiber.stack = stack_of(stacks, i);
    fiber.lane = i % 32;
    fiber.warp = i / 32;
    fiber.fenced = false;
    fiber.fake_stack = nullptr;
    fiber.thread = {i % block.threads.x, i / block.threads.x % block.threads.y,
                    i / (block.threads.x * block.threads.y)};
    Warp& warp = block.warp[fiber.warp];
    if (fiber.lane == 0) warp.alive = 0, warp.groups = 0;
    warp.alive |= 1u << fiber.lane;
    start(fiber, run_thread);
    make_ready(i);
  }
  self = &block.main;
  --block.queued;
  switch_to(&block.fiber[block.queue[block.first++]]);
  CUDA_EMULATOR_TSAN(for (int i = 0; i < block.count; ++i) __tsan_destroy_fiber(block.fiber[i].tsan);)
  check_zones();
  return block.fault[0] ? block.fault : nullptr;
}

// While it lives, signals of a kernel's own accesses are told as its faults.
struct Signals {
  static constexpr int NUMBERS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
  static constexpr int COUNT = sizeof NUMBERS / sizeof *NUMBERS;
  struct sigaction before[COUNT];
  stack_t stack_before;
  CUDA_EMULATOR_RUNTIME Signals() {
    static char* stack = new char[STACK_BYTES];
    stack_t own = {};
    own.ss_sp = stack;
    own.ss_size = STACK_BYTES;
    sigaltstack(&own, &stack_before);
    struct sigaction action = {};
    action.sa_sigaction = signalled;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < COUNT; ++i) sigaction(NUMBERS[i], &action, &before[i]);
  }
  CUDA_EMULATOR_RUNTIME ~Signals() {
    for (int i = 0; i < COUNT; ++i) sigaction(NUMBERS[i], &before[i], nullptr);
    sigaltstack(&stack_before, nullptr);
  }
};

// Runs a grid and returns null, or what went wrong, in one line. seed: 0 runs blocks and threads in order; another
// number permutes both.
CUDA_EMULATOR_RUNTIME inline const char* run_grid(dim3 grid, dim3 threads, size_t shared_bytes, uint64_t seed) {
  const uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
  block.grid = grid;
  block.threads = threads;
  block.fault[0] = 0;
  block.random = seed * 0x9e3779b97f4a7c15;
  memset((void*)&block.main, 0, sizeof block.main);
  const Signals signals;
  uint64_t step = 1, at = 0;
  if (seed) {  // any step that shares no divisor with the count visits every block once
    for (step = 1 + draw() % blocks; std::gcd(step, blocks) != 1;) ++step;
    at = draw() % blocks;
  }
  for (uint64_t i = 0; i < blocks; ++i, at = (at + step) % blocks) {
    block.index = {unsigned(at % grid.x), unsigned(at / grid.x % grid.y), unsigned(at / grid.x / grid.y)};
    if (const char* fault = run_block(shared_bytes)) return fault;
  }
  CUDA_EMULATOR_TSAN(__tsan_acquire(&block.ended);)
  return nullptr;
}

template <class... A, size_t... I>
const char* call(void (*kernel)(A...), dim3 grid, dim3 threads, size_t shared_bytes, uint64_t seed, void** arguments,
                 std::index_sequence<I...>) {
  struct Bound {
    void (*kernel)(A...);
    void** arguments;
  } bound{kernel, arguments};
  block.body = [](void* given) {
    [[maybe_unused]] auto* bound = (Bound*)given;
    bound->kernel(*(std::remove_reference_t<A>*)bound->arguments[I]...);
  };
  block.argument = &bound;
  return run_grid(grid, threads, shared_bytes, seed);
}

template <class... A>
const char* launch(void (*kernel)(A...), const unsigned* grid, const unsigned* threads, size_t shared_bytes,
                   uint64_t seed, void** arguments) {
  return call(kernel, {grid[0], grid[1], grid[2]}, {threads[0], threads[1], threads[2]}, shared_bytes, seed, arguments,
              std::index_sequence_for<A...>{});
}

// The parameters of a kernel, in order, a letter and a size in bytes each: p pointer, f floating, i signed, u unsigned
// integer, s structure.
template <class... A>
const char* signature(void (*)(A...)) {
  static char text[512];
  char* at = text;
  *at = 0;
  const auto put = [&at](char letter, size_t bytes) {
    if (at < text + sizeof text - 24) at += snprintf(at, 24, "%c%zu ", letter, bytes);
  };
  (put(std::is_pointer_v<A>          ? 'p'
       : std::is_floating_point_v<A> ? 'f'
       : std::is_unsigned_v<A>       ? 'u'
       : std::is_integral_v<A>       ? 'i'
                                     : 's',
       sizeof(A)),
   ...);
  return text;
}

}  // namespace cuda_emulator
