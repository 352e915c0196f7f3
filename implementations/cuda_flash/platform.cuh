// What differs between a GPU and the emulator, and the arithmetic of the three dtypes.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifdef CUDA_EMULATOR
using cuda_emulator::carve;  // as below, with a red zone behind each array
#else
// Gives out an array of the block's shared memory from `at` on, and moves `at` behind it.
template <typename T>
__device__ inline T* carve(unsigned char*& at, size_t count) {
  T* const array = reinterpret_cast<T*>(at);
  at += (count * sizeof(T) + 15) / 16 * 16;
  return array;
}
#endif

// The bytes that `carve` takes for an array.
template <typename T>
__host__ __device__ constexpr int bytes_of(int count) {
  return (count * static_cast<int>(sizeof(T)) + 15) / 16 * 16;
}

extern __shared__ __align__(16) unsigned char shared_memory[];

#define MINUS_INFINITY __int_as_float(0xff800000)

constexpr int LANES = 32, WARPS = 4, THREADS = WARPS * LANES;
constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// Rounds to nearest, ties to even.
__device__ inline void store(float& to, float x) { to = x; }
__device__ inline void store(__half& to, float x) { to = __float2half_rn(x); }
__device__ inline void store(__nv_bfloat16& to, float x) { to = __float2bfloat16_rn(x); }

// The largest value, or the sum, over groups of `width` neighbouring lanes; each lane of a group gets it.
__device__ inline float largest_of(float x, int width) {
  for (int apart = width / 2; apart > 0; apart /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, apart));
  return x;
}

__device__ inline float sum_of(float x, int width) {
  for (int apart = width / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(ALL_LANES, x, apart);
  return x;
}
