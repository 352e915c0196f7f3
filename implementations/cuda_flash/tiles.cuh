// Tiles of a tensor in shared memory. Rows at or beyond `end` and columns beyond the tensor's count as 0 and are not read:
// what is not there may hold NaN, and 0 * NaN is NaN (rule key-lengths.absent).
#pragma once
#include "call.cuh"

// tile[r * stride + c] = x[batch, head, first + r, c] for r < rows, c < COLUMNS.
template <typename T, typename To, int COLUMNS>
__device__ void load_tile(To* tile, int stride, const Strided& x, int batch, int head, int first, int rows, int end,
                          int columns) {
  for (int i = threadIdx.x; i < rows * COLUMNS; i += THREADS) {
    const int r = i / COLUMNS, c = i % COLUMNS;
    const bool there = first + r < end && c < columns;
    store(tile[r * stride + c], there ? to_float(x.at<T>(batch, head, first + r, c)) : 0.0f);
  }
}

// tile[c * stride + r] = x[batch, head, first + r, c].
template <typename T, typename To, int COLUMNS>
__device__ void load_transposed(To* tile, int stride, const Strided& x, int batch, int head, int first, int rows,
                                int end, int columns) {
  for (int i = threadIdx.x; i < rows * COLUMNS; i += THREADS) {
    const int r = i / COLUMNS, c = i % COLUMNS;
    const bool there = first + r < end && c < columns;
    store(tile[c * stride + r], there ? to_float(x.at<T>(batch, head, first + r, c)) : 0.0f);
  }
}

// The dot products of COUNT columns of a transposed tile, from `of` on, with one row: sums[n] = sum_c of[c][n] row[c].
template <int COUNT>
__device__ void products(float (&sums)[COUNT], const float* of, int stride, const float* row, int columns) {
#pragma unroll
  for (int n = 0; n < COUNT; ++n) sums[n] = 0.0f;
#pragma unroll 4
  for (int c = 0; c < columns; ++c) {
#pragma unroll
    for (int n = 0; n < COUNT; ++n) sums[n] += of[c * stride + n] * row[c];
  }
}

// sums[d][n] += sum_j factors[j][n] rows[j][d * LANES + lane], over the LANES rows of a tile: what a lane holds of
// COUNT rows of a matrix product.
template <int SLICES, int COUNT>
__device__ void accumulate(float (&sums)[SLICES][COUNT], const float* factors, int factor_stride, const float* rows,
                           int stride) {
  const int lane = threadIdx.x % LANES;
#pragma unroll 2
  for (int j = 0; j < LANES; ++j) {
#pragma unroll
    for (int d = 0; d < SLICES; ++d) {
      const float x = rows[j * stride + d * LANES + lane];
#pragma unroll
      for (int n = 0; n < COUNT; ++n) sums[d][n] += factors[j * factor_stride + n] * x;
    }
  }
}
