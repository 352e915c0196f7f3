// Attention in tiles in plain CUDA C++, to be read beside spec/flash-attention.md. One build serves one dtype and one
// padded head dimension: -DDTYPE=float, __half or __nv_bfloat16, and -DPADDED_DIM=32, 64, 128 or 256.
#include "backward.cuh"
#include "forward.cuh"
#include "forward_mma.cuh"

// Grid (batch * q_heads, tiles of rows, splits).
extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_forward(const Call call) {
  if constexpr (sizeof(DTYPE) == 2) {
    forward_mma<DTYPE, PADDED_DIM>(call);
  } else {
    forward<DTYPE, PADDED_DIM>(call);
  }
}

// Grid (rows of all heads / WARPS): after a forward pass over more than one part.
extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_merge(const Call call) { merge<DTYPE>(call); }

// Grid (rows of all heads / WARPS): before the two kernels below.
extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_delta(const Call call) { row_delta<DTYPE>(call); }

// Grid (batch * q_heads, tiles of rows).
extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_backward_query(const Call call) {
  backward_query<DTYPE, PADDED_DIM>(call);
}

// Grid (kv_batch * kv_heads, tiles of keys).
extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_backward_key_value(const Call call) {
  backward_key_value<DTYPE, PADDED_DIM>(call);
}

// What the launches need to know: rows, or keys, of a block, and bytes of dynamic shared memory, forward and backward.
extern "C" __global__ void attention_sizes(int* sizes) {
  using Mma = MmaTiles<PADDED_DIM>;
  using Forward = ForwardTiles<PADDED_DIM>;
  using Backward = BackwardTiles<PADDED_DIM>;
  constexpr bool tensor_cores = sizeof(DTYPE) == 2;
  sizes[0] = tensor_cores ? Mma::BLOCK_ROWS : Forward::BLOCK_ROWS;
  sizes[1] = tensor_cores ? Mma::BYTES : Forward::BYTES;
  sizes[2] = Backward::BLOCK_COUNT;
  sizes[3] = Backward::BYTES;
}
