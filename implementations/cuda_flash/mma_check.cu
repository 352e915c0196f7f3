// One product of the tensor core, d = a b, by the fragments that the forward pass reads and writes: a (16, 16) and b
// (16, 8) of DTYPE, d (16, 8), all row by row. A wrong layout of a fragment gives another product.
#include "mma.cuh"

extern "C" __global__ void mma_product(const DTYPE* a, const DTYPE* b, float* d) {
  __shared__ DTYPE columns[8 * 16];  // the columns of b as rows
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  for (int i = lane; i < 8 * 16; i += LANES) columns[i] = b[i % 16 * 8 + i / 16];
  __syncthreads();
  unsigned left[4], right[2];
  load_a(left, a, 16);
  load_b(right, columns, 16);
  float product[4] = {};
  multiply<DTYPE>(product, left, right);
  for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = product[i];
}
