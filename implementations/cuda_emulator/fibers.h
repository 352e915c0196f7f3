// Fibers: one stack for each CUDA thread of a block, switched by hand on one thread of the system. The sanitizers are
// told of each switch, so that ThreadSanitizer sees CUDA threads where the system sees one thread.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <vector_functions.h>
#include <vector_types.h>

#if !defined(__x86_64__)
#define CUDA_EMULATOR_UCONTEXT
#endif
#ifdef CUDA_EMULATOR_UCONTEXT
#include <ucontext.h>
#endif

#if defined(__SANITIZE_THREAD__)
extern "C" {
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void* __tsan_get_current_fiber();
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#define CUDA_EMULATOR_TSAN(...) __VA_ARGS__
#else
#define CUDA_EMULATOR_TSAN(...)
#endif
#if defined(__SANITIZE_ADDRESS__)
extern "C" {
void __sanitizer_start_switch_fiber(void** save, const void* bottom, size_t size);
void __sanitizer_finish_switch_fiber(void* save, const void** bottom, size_t* size);
void __asan_poison_memory_region(const volatile void* address, size_t size);
void __asan_unpoison_memory_region(const volatile void* address, size_t size);
}
#define CUDA_EMULATOR_ASAN(...) __VA_ARGS__
#else
#define CUDA_EMULATOR_ASAN(...)
#endif

// The emulator's own reads and writes are no part of the kernel, and no loop of its may become a call of memset, which
// the sanitizers watch.
#define CUDA_EMULATOR_RUNTIME                                        \
  __attribute__((noinline, no_sanitize("thread", "address", "undefined"), \
                 optimize("no-tree-loop-distribute-patterns")))

namespace __attribute__((visibility("hidden"))) cuda_emulator {

constexpr int MAX_THREADS = 1024;
constexpr size_t STACK_BYTES = 256 << 10;
constexpr unsigned TSAN_NO_SYNC = 1;  // a switch orders no memory: only barriers do

enum class Wait : char { nothing, barrier, warp, ended };

struct Fiber {
  void* stack_pointer;
#ifdef CUDA_EMULATOR_UCONTEXT
  ucontext_t context;
#endif
  char* stack;
  uint3 thread;
  int lane, warp;
  Wait wait;
  bool fenced;  // has called __threadfence
  void *tsan, *fake_stack;
};

inline Fiber* self = nullptr;  // the fiber that runs

#ifndef CUDA_EMULATOR_UCONTEXT
// Pushes the registers that a callee keeps, saves the stack pointer in *save, takes up the stack of `load`.
__attribute__((naked, noinline, noipa)) inline void swap_stacks(void** /*save*/, void* /*load*/) {
  asm volatile(
      "pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15;"
      "movq %rsp, (%rdi); movq %rsi, %rsp;"
      "popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp; ret");
}
#endif

// ends: the fiber that runs never runs again.
CUDA_EMULATOR_RUNTIME inline void switch_to(Fiber* to, [[maybe_unused]] bool ends = false) {
  Fiber* from = self;
  self = to;
  CUDA_EMULATOR_ASAN(__sanitizer_start_switch_fiber(ends ? nullptr : &from->fake_stack, to->stack, STACK_BYTES);)
  CUDA_EMULATOR_TSAN(__tsan_switch_to_fiber(to->tsan, TSAN_NO_SYNC);)
#ifdef CUDA_EMULATOR_UCONTEXT
  swapcontext(&from->context, &to->context);
#else
  swap_stacks(&from->stack_pointer, to->stack_pointer);
#endif
  CUDA_EMULATOR_ASAN(__sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);)
}

// Sets the fiber to call `entry` on an empty stack when it is first switched to.
CUDA_EMULATOR_RUNTIME inline void start(Fiber& fiber, void (*entry)()) {
  CUDA_EMULATOR_ASAN(__asan_unpoison_memory_region(fiber.stack, STACK_BYTES);)
  CUDA_EMULATOR_TSAN(fiber.tsan = __tsan_create_fiber(0);)
#ifdef CUDA_EMULATOR_UCONTEXT
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = STACK_BYTES;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
#else
  void** top = (void**)(fiber.stack + STACK_BYTES - 72);  // 8 above a multiple of 16, as after a call
  *top = nullptr;
  *--top = (void*)entry;
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fiber.stack_pointer = top;
#endif
}

// Maps stacks for `count` fibers, a page that no one may touch below each. The mapping is kept, and grows; with
// ThreadSanitizer it is new for each block, so that no block seems to share its stacks with another.
CUDA_EMULATOR_RUNTIME inline char* map_stacks(int count) {
  static char* base = nullptr;
  static int mapped = 0;
  const size_t page = size_t(sysconf(_SC_PAGESIZE)), each = STACK_BYTES + page;
  bool renew = count > mapped;
  CUDA_EMULATOR_TSAN(renew = true;)
  if (!renew) return base;
  if (base) munmap(base, each * mapped);
  void* given = mmap(nullptr, each * count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  base = given == MAP_FAILED ? nullptr : (char*)given;
  mapped = base ? count : 0;
  for (int i = 0; i < mapped; ++i) mprotect(base + each * i, page, PROT_NONE);
  return base;
}

inline char* stack_of(char* base, int index) {
  const size_t page = size_t(sysconf(_SC_PAGESIZE));
  return base + (STACK_BYTES + page) * index + page;
}

}  // namespace cuda_emulator
