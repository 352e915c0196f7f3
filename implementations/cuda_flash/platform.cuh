// What differs between a GPU and the emulator, and the arithmetic of the three dtypes.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifdef CUDA_EMULATOR
#define DYNAMIC_SHARED(T, name) T* const name = cuda_emulator::dynamic_shared<T>()
#else
#define DYNAMIC_SHARED(T, name)                             \
  extern __shared__ __align__(16) unsigned char name##_[];  \
  T* const name = reinterpret_cast<T*>(name##_)
#endif

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
