// The tensor core's product of 16-bit tiles, d += a b with a (16, 16), b (16, 8) and d (16, 8) spread over a warp. With
// g = lane / 4 and t = lane % 4, and two 16-bit numbers of neighbouring columns (of a) or rows (of b) to a register:
//
//     a[0] = A[g][2t..]   a[1] = A[g + 8][2t..]   a[2] = A[g][2t + 8..]   a[3] = A[g + 8][2t + 8..]
//     b[0] = B[2t..][g]   b[1] = B[2t + 8..][g]
//     d[0], d[1] = D[g][2t..]   d[2], d[3] = D[g + 8][2t..]
//
// Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type". Needs sm_80.
#pragma once
#include "platform.cuh"

#ifdef CUDA_EMULATOR
template <typename T>
__device__ inline void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  cuda_emulator::mma_m16n8k16<T>(d, a, b);
}
#else
#define MULTIPLY(type, name)                                                                                        \
  __device__ inline void multiply_as(type, float(&d)[4], const unsigned(&a)[4], const unsigned(&b)[2]) {            \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name                                             \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                             \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                               \
  }
MULTIPLY(__half, "f16")
MULTIPLY(__nv_bfloat16, "bf16")
#undef MULTIPLY

template <typename T>
__device__ inline void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  multiply_as(T(), d, a, b);
}
#endif

// Two neighbouring numbers as one register; `from` is even in a tile of even stride.
template <typename T>
__device__ inline unsigned pair(const T* from) {
  unsigned packed;
  memcpy(&packed, __builtin_assume_aligned(from, 4), 4);
  return packed;
}

template <typename T>
__device__ inline unsigned pair(float low, float high) {
  T both[2];
  store(both[0], low);
  store(both[1], high);
  return pair<T>(both);
}

// A fragment `a` of the rows 0 .. 15 and columns 0 .. 15 from `from` on.
template <typename T>
__device__ inline void load_a(unsigned (&a)[4], const T* from, int stride) {
  const int g = threadIdx.x % LANES / 4, t = threadIdx.x % 4;
  a[0] = pair(from + g * stride + 2 * t);
  a[1] = pair(from + (g + 8) * stride + 2 * t);
  a[2] = pair(from + g * stride + 2 * t + 8);
  a[3] = pair(from + (g + 8) * stride + 2 * t + 8);
}

// A fragment `b` from a tile that holds the columns of B as its rows: B[k][n] = from[n * stride + k].
template <typename T>
__device__ inline void load_b(unsigned (&b)[2], const T* from, int stride) {
  const int g = threadIdx.x % LANES / 4, t = threadIdx.x % 4;
  b[0] = pair(from + g * stride + 2 * t);
  b[1] = pair(from + g * stride + 2 * t + 8);
}
