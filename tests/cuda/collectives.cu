// Small kernels, one for each thing that the emulator stands in for. out: one number a thread.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr unsigned ALL = 0xffffffffu;

extern "C" __global__ void shuffles(const int* in, int* index, int* exclusive, int* up, int* down, int width) {
  const int lane = threadIdx.x, x = in[lane];
  index[lane] = __shfl_sync(ALL, x, 5, width);
  exclusive[lane] = __shfl_xor_sync(ALL, x, 3, width);
  up[lane] = __shfl_up_sync(ALL, x, 2, width);
  down[lane] = __shfl_down_sync(ALL, x, 2, width);
}

extern "C" __global__ void votes(unsigned* out, int n) {
  const int lane = threadIdx.x % 32, i = threadIdx.x;
  const bool vote = i < n;
  unsigned* row = out + 8 * i;
  row[0] = __ballot_sync(ALL, vote);
  row[1] = __any_sync(ALL, vote);
  row[2] = __all_sync(ALL, vote);
  row[3] = __syncthreads_count(vote);
  row[4] = __syncthreads_or(vote);
  row[5] = __syncthreads_and(vote);
  row[6] = __reduce_add_sync(ALL, unsigned(lane));
  row[7] = lane < 16 ? __reduce_max_sync(0x0000ffffu, lane) : __reduce_min_sync(0xffff0000u, lane);
}

extern "C" __global__ void indices(int* out) {
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] = 1000 * block + thread;
}

extern "C" __global__ void order(int* turn, int* blocks, int* threads) {
  const int at = atomicAdd(turn, 1);
  blocks[at] = blockIdx.x;
  threads[at] = threadIdx.x;
}

extern "C" __global__ void atomics(int* whole, float* real, unsigned long long* wide, __half* half) {
  const int i = threadIdx.x;
  atomicAdd(whole, i);
  atomicMax(whole + 1, i);
  atomicMin(whole + 2, i);
  atomicCAS(whole + 3, i, i + 1);
  atomicAdd(real, 0.5f);
  atomicAdd(wide, 1ull << 40);
  atomicAdd(half, __float2half(0.25f));
}

extern "C" __global__ void unset(float* out) {
  __shared__ float one[32], two[4][8];
  extern __shared__ float pool[];
  const int i = threadIdx.x;
  out[i] = one[i];
  out[32 + i] = two[i / 8][i % 8];
  out[64 + i] = pool[i];
  one[i] = two[i / 8][i % 8] = pool[i] = 0;  // what a block leaves, the next one does not find
}

template <class T>
__device__ void multiply(const T* a, const T* b, float* d) {
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  const auto two = [](const T* from) { return *reinterpret_cast<const unsigned*>(from); };
  const unsigned left[4] = {two(a + g * 16 + 2 * t), two(a + (g + 8) * 16 + 2 * t), two(a + g * 16 + 2 * t + 8),
                            two(a + (g + 8) * 16 + 2 * t + 8)};
  const unsigned right[2] = {two(b + g * 16 + 2 * t), two(b + g * 16 + 2 * t + 8)};
  float sum[4] = {1, 1, 1, 1};
  cuda_emulator::mma_m16n8k16<T>(sum, left, right);
  for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}

// d (16, 8) = 1 + a (16, 16) times b, which is given by columns (8, 16).
extern "C" __global__ void multiply_half(const __half* a, const __half* b, float* d) { multiply(a, b, d); }
extern "C" __global__ void multiply_bfloat16(const __nv_bfloat16* a, const __nv_bfloat16* b, float* d) {
  multiply(a, b, d);
}

extern "C" __global__ void early_exit(int* out, int n) {
  if (int(threadIdx.x) >= n) return;
  __syncthreads();
  out[threadIdx.x] = __shfl_xor_sync(ALL, int(threadIdx.x), 1);
}
