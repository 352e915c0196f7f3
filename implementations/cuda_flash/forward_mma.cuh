// The forward pass on tensor cores, for 16-bit dtypes: a warp holds 16 rows, its scores and outputs lie in fragments (see
// mma.cuh), and the weights are rounded to the dtype before they multiply the values.
#pragma once
#include "mma.cuh"
#include "rows.cuh"
#include "tiles.cuh"

constexpr int MMA_ROWS = 16, MMA_COLUMNS = 8, MMA_DEPTH = 16;  // of one product

template <int DIM>
struct MmaTiles {
  static constexpr int BLOCK_ROWS = WARPS * MMA_ROWS, KEYS = 32;
  static constexpr int STRIDE = DIM + 8, VALUE_STRIDE = KEYS + 8;  // the lanes of a fragment read from different banks
  static constexpr int QUERY = BLOCK_ROWS * STRIDE, KEY = KEYS * STRIDE, VALUE = DIM * VALUE_STRIDE;
  static constexpr int BYTES = bytes_of<__half>(QUERY) + bytes_of<__half>(KEY) + bytes_of<__half>(VALUE);
};

template <typename T, int DIM>
__device__ void forward_mma(const Call& call) {
  using Tile = MmaTiles<DIM>;
  constexpr int KEY_BLOCKS = Tile::KEYS / MMA_COLUMNS, DIM_BLOCKS = DIM / MMA_COLUMNS;
  unsigned char* free = shared_memory;
  T* const query = carve<T>(free, Tile::QUERY);  // (BLOCK_ROWS, DIM)
  T* const key = carve<T>(free, Tile::KEY);      // (KEYS, DIM)
  T* const value = carve<T>(free, Tile::VALUE);  // (DIM, KEYS)
  const int warp = threadIdx.x / LANES, g = threadIdx.x % LANES / 4, t = threadIdx.x % 4;

  const int batch = blockIdx.x / call.q_heads, head = blockIdx.x % call.q_heads;
  const int first = blockIdx.y * Tile::BLOCK_ROWS, own = first + warp * MMA_ROWS;
  const Keys keys = keys_of(call, batch);
  const Range seen = part_of(call, keys_seen(call, keys, first, min(first + Tile::BLOCK_ROWS, call.q_len) - 1), blockIdx.z);
  load_tile<T, T, DIM>(query, Tile::STRIDE, call.query, batch, head, first, Tile::BLOCK_ROWS, call.q_len, call.head_dim);

  float output[DIM_BLOCKS][4] = {};
  float maximum[2] = {MINUS_INFINITY, MINUS_INFINITY}, sum[2] = {};  // of rows g and g + 8; sum: the lane's own columns

  for (int tile = seen.begin; tile < seen.end; tile += Tile::KEYS) {
    __syncthreads();  // all warps are done with the tile before
    load_tile<T, T, DIM>(key, Tile::STRIDE, call.key, kv_batch(call, batch), kv_head(call, head), tile, Tile::KEYS,
                         seen.end, call.head_dim);
    load_transposed<T, T, DIM>(value, Tile::VALUE_STRIDE, call.value, kv_batch(call, batch), kv_head(call, head), tile,
                               Tile::KEYS, seen.end, call.value_dim);
    __syncthreads();
    if (own >= call.q_len) continue;

    float s[KEY_BLOCKS][4] = {};
    for (int depth = 0; depth < call.head_dim; depth += MMA_DEPTH) {
      unsigned a[4], b[2];
      load_a(a, query + warp * MMA_ROWS * Tile::STRIDE + depth, Tile::STRIDE);
#pragma unroll
      for (int n = 0; n < KEY_BLOCKS; ++n) {
        load_b(b, key + n * MMA_COLUMNS * Tile::STRIDE + depth, Tile::STRIDE);
        multiply<T>(s[n], a, b);
      }
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float larger = maximum[half];
#pragma unroll
      for (int n = 0; n < KEY_BLOCKS; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          const int j = tile + n * MMA_COLUMNS + 2 * t + i % 2;
          s[n][i] = j < seen.end ? score<T>(call, keys, batch, head, own + g + 8 * half, j, s[n][i]) : MINUS_INFINITY;
          larger = fmaxf(larger, s[n][i]);
        }
      }
      larger = largest_of(larger, 4);                            // m' = max(m, max_j s_j), over the lanes of the row
      const float correction = weight(maximum[half], larger);    // exp(m - m')
      maximum[half] = larger;
      sum[half] *= correction;
#pragma unroll
      for (int n = 0; n < KEY_BLOCKS; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          s[n][i] = weight(s[n][i], larger);                     // exp(s_j - m')
          sum[half] += s[n][i];
        }
      }
#pragma unroll
      for (int n = 0; n < DIM_BLOCKS; ++n) {
        output[n][2 * half] *= correction;
        output[n][2 * half + 1] *= correction;
      }
    }

#pragma unroll
    for (int k = 0; k < KEY_BLOCKS / 2; ++k) {  // the weights of two blocks of keys are one fragment a
      const unsigned a[4] = {pair<T>(s[2 * k][0], s[2 * k][1]), pair<T>(s[2 * k][2], s[2 * k][3]),
                             pair<T>(s[2 * k + 1][0], s[2 * k + 1][1]), pair<T>(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
      for (int n = 0; n < DIM_BLOCKS; ++n) {
        if (n * MMA_COLUMNS >= call.value_dim) continue;
        unsigned b[2];
        load_b(b, value + n * MMA_COLUMNS * Tile::VALUE_STRIDE + k * MMA_DEPTH, Tile::VALUE_STRIDE);
        multiply<T>(output[n], a, b);
      }
    }
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = sum_of(sum[half], 4);
    const int i = own + g + 8 * half;
    if (i >= call.q_len) continue;
    const Row row = finish(call, batch, head, i, blockIdx.z, maximum[half], total, t == 0);
#pragma unroll
    for (int n = 0; n < DIM_BLOCKS; ++n) {
      store_output<T>(call, row, n * MMA_COLUMNS + 2 * t, output[n][2 * half]);
      store_output<T>(call, row, n * MMA_COLUMNS + 2 * t + 1, output[n][2 * half + 1]);
    }
  }
}
