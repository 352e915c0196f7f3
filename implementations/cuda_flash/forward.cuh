// The forward pass in float32 arithmetic (spec chapter "flash-attention", "Forward"): a block holds a tile of rows, a warp
// ROWS of them, and in a tile of keys each lane one key.
#pragma once
#include "rows.cuh"
#include "tiles.cuh"

template <int DIM>
struct ForwardTiles {
  static constexpr int ROWS = DIM <= 64 ? 16 : 1024 / DIM;  // of a warp: 32 accumulators a lane at most
  static constexpr int BLOCK_ROWS = WARPS * ROWS;
  static constexpr int QUERY_STRIDE = BLOCK_ROWS + 1, KEY_STRIDE = DIM + 1, WEIGHT_STRIDE = ROWS + 1;  // no bank conflict
  static constexpr int QUERY = DIM * QUERY_STRIDE, KEY = LANES * KEY_STRIDE, WEIGHTS = LANES * WEIGHT_STRIDE;
  static constexpr int BYTES = bytes_of<float>(QUERY) + 2 * bytes_of<float>(KEY) + bytes_of<float>(WARPS * WEIGHTS);
};

template <typename T, int DIM>
__device__ void forward(const Call& call) {
  using Tile = ForwardTiles<DIM>;
  constexpr int ROWS = Tile::ROWS, SLICES = DIM / LANES;
  unsigned char* free = shared_memory;
  float* const query = carve<float>(free, Tile::QUERY);  // (DIM, BLOCK_ROWS)
  float* const key = carve<float>(free, Tile::KEY);      // (LANES, DIM)
  float* const value = carve<float>(free, Tile::KEY);    // (LANES, DIM)
  const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  float* const weights = carve<float>(free, WARPS * Tile::WEIGHTS) + warp * Tile::WEIGHTS;  // (LANES, ROWS)

  const int batch = blockIdx.x / call.q_heads, head = blockIdx.x % call.q_heads;
  const int first = blockIdx.y * Tile::BLOCK_ROWS, own = first + warp * ROWS;
  const Keys keys = keys_of(call, batch);
  const Range seen = part_of(call, keys_seen(call, keys, first, min(first + Tile::BLOCK_ROWS, call.q_len) - 1), blockIdx.z);
  load_transposed<T, float, DIM>(query, Tile::QUERY_STRIDE, call.query, batch, head, first, Tile::BLOCK_ROWS, call.q_len,
                                 call.head_dim);

  float output[SLICES][ROWS], maximum[ROWS], sum[ROWS];  // sum: over the lane's own keys
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    maximum[r] = MINUS_INFINITY;
    sum[r] = 0.0f;
#pragma unroll
    for (int d = 0; d < SLICES; ++d) output[d][r] = 0.0f;
  }

  for (int tile = seen.begin; tile < seen.end; tile += LANES) {
    __syncthreads();  // all warps are done with the tile before
    load_tile<T, float, DIM>(key, Tile::KEY_STRIDE, call.key, kv_batch(call, batch), kv_head(call, head), tile, LANES,
                             seen.end, call.head_dim);
    load_tile<T, float, DIM>(value, Tile::KEY_STRIDE, call.value, kv_batch(call, batch), kv_head(call, head), tile, LANES,
                             seen.end, call.value_dim);
    __syncthreads();
    if (own >= call.q_len) continue;
    float scores[ROWS];
    products(scores, query + warp * ROWS, Tile::QUERY_STRIDE, key + lane * Tile::KEY_STRIDE, call.head_dim);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int j = tile + lane;
      const float s = j < seen.end ? score<T>(call, keys, batch, head, own + r, j, scores[r]) : MINUS_INFINITY;
      const float larger = fmaxf(maximum[r], largest_of(s, LANES));   // m' = max(m, max_j s_j)
      const float correction = weight(maximum[r], larger);            // exp(m - m')
      const float w = weight(s, larger);                              // exp(s_j - m')
      maximum[r] = larger;
      sum[r] = correction * sum[r] + w;
#pragma unroll
      for (int d = 0; d < SLICES; ++d) output[d][r] *= correction;
      weights[lane * Tile::WEIGHT_STRIDE + r] = w;
    }
    __syncwarp();
    accumulate<SLICES, ROWS>(output, weights, Tile::WEIGHT_STRIDE, value, Tile::KEY_STRIDE);
  }

#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const float total = sum_of(sum[r], LANES);
    if (own + r >= call.q_len) continue;
    const Row row = finish(call, batch, head, own + r, blockIdx.z, maximum[r], total, lane == 0);
#pragma unroll
    for (int d = 0; d < SLICES; ++d) store_output<T>(call, row, d * LANES + lane, output[d][r]);
  }
}
