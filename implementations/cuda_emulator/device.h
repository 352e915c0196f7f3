// What a kernel takes from CUDA: its variables, barriers, arithmetic and atomics.
#pragma once
#include <cmath>

#include "memory.h"
#include "warp.h"

#define threadIdx (::cuda_emulator::self->thread)
#define blockIdx (::cuda_emulator::block.index)
#define blockDim (::cuda_emulator::block.threads)
#define gridDim (::cuda_emulator::block.grid)
constexpr int warpSize = 32;

inline void __syncthreads(cuda_emulator::Place place = std::source_location::current()) {
  cuda_emulator::barrier(false, place);
}
inline int __syncthreads_count(int vote, cuda_emulator::Place place = std::source_location::current()) {
  return cuda_emulator::barrier(vote != 0, place);
}
inline int __syncthreads_or(int vote, cuda_emulator::Place place = std::source_location::current()) {
  return cuda_emulator::barrier(vote != 0, place) != 0;
}
inline int __syncthreads_and(int vote, cuda_emulator::Place place = std::source_location::current()) {
  return cuda_emulator::barrier(vote == 0, place) == 0;
}

[[noreturn]] inline void __trap(cuda_emulator::Place place = std::source_location::current()) {
  cuda_emulator::stop(place, "%s", "__trap() is called");
}

// Fast and rounded arithmetic: as exact as the host's own, where a GPU approximates.
inline float __expf(float x) { return std::exp(x); }
inline float __exp10f(float x) { return std::pow(10.0f, x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __log10f(float x) { return std::log10(x); }
inline float __powf(float x, float y) { return std::pow(x, y); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __tanf(float x) { return std::tan(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frsqrt_rn(float x) { return 1.0f / std::sqrt(x); }
inline float __saturatef(float x) { return x > 1 ? 1.0f : x > 0 ? x : 0.0f; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }

inline float __int_as_float(int x) { return cuda_emulator::value_of<float>(unsigned(x)); }
inline float __uint_as_float(unsigned x) { return cuda_emulator::value_of<float>(x); }
inline int __float_as_int(float x) { return int(cuda_emulator::bits_of(x)); }
inline unsigned __float_as_uint(float x) { return unsigned(cuda_emulator::bits_of(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }

template <class A, class B>
constexpr auto min(A a, B b) {
  return b < a ? b : a;
}
template <class A, class B>
constexpr auto max(A a, B b) {
  return a < b ? b : a;
}

template <class T>
T __ldg(const T* address) {
  return *address;
}

// A fence makes the atomics that follow it publish what the thread wrote before.
CUDA_EMULATOR_RUNTIME inline void __threadfence() { cuda_emulator::self->fenced = true; }
CUDA_EMULATOR_RUNTIME inline void __threadfence_block() { cuda_emulator::self->fenced = true; }

namespace __attribute__((visibility("hidden"))) cuda_emulator {

template <class T>
using Word = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;

// Replaces *address by change(*address) at once, and returns what was there. An atomic of CUDA orders no other memory
// without a fence; here it always acquires, and releases what was written before a __threadfence.
template <class T, class Change>
T update(T* address, Change change) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);
  Word<T>* word = (Word<T>*)address;
  Word<T> old = __atomic_load_n(word, __ATOMIC_RELAXED), next;
  bool swapped;
  do {
    next = Word<T>(bits_of<T>(change(value_of<T>(old))));
    swapped = self->fenced ? __atomic_compare_exchange_n(word, &old, next, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)
                           : __atomic_compare_exchange_n(word, &old, next, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
  } while (!swapped);
  return value_of<T>(old);
}

}  // namespace cuda_emulator

#define CUDA_EMULATOR_ATOMIC(name, expression)                                             \
  template <class T>                                                                       \
  T name(T* address, std::type_identity_t<T> value) {                                      \
    return cuda_emulator::update(address, [value](T old) -> T { return expression; });     \
  }
CUDA_EMULATOR_ATOMIC(atomicAdd, old + value)
CUDA_EMULATOR_ATOMIC(atomicSub, old - value)
CUDA_EMULATOR_ATOMIC(atomicMin, value < old ? value : old)
CUDA_EMULATOR_ATOMIC(atomicMax, old < value ? value : old)
CUDA_EMULATOR_ATOMIC(atomicAnd, old & value)
CUDA_EMULATOR_ATOMIC(atomicOr, old | value)
CUDA_EMULATOR_ATOMIC(atomicXor, old ^ value)
CUDA_EMULATOR_ATOMIC(atomicExch, ((void)old, value))
CUDA_EMULATOR_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
CUDA_EMULATOR_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)

template <class T>
T atomicCAS(T* address, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
  return cuda_emulator::update(address, [=](T old) -> T { return old == compare ? value : old; });
}
