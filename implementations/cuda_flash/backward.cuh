// The backward pass (spec chapters "backward" and "flash-attention", "Backward"): the weights are computed again from the
// maximum and the sum of each row, kept apart, and never stored.
//
//     P_ij = exp(s_ij - m_i) / l_i     dS_ij = P_ij (dO_i . v_j - delta_i)     delta_i = dO_i . o_i - dlse_i
//     dQ = scale dS K                  dK = scale dS^T Q                       dV = P^T dO
#pragma once
#include "tiles.cuh"

// delta_i of each row, a warp for each.
template <typename T>
__device__ void row_delta(const Call& call) {
  const int lane = threadIdx.x % LANES;
  const long long rows = static_cast<long long>(call.batch) * call.q_heads * call.q_len;
  const long long index = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / LANES;
  if (index >= rows) return;
  const int row = index % call.q_len, head = index / call.q_len % call.q_heads, batch = index / call.q_len / call.q_heads;
  float product = 0.0f;
  for (int column = lane; column < call.value_dim; column += LANES) {
    product += to_float(call.grad_output.at<T>(batch, head, row, column)) *
               to_float(call.output.at<T>(batch, head, row, column));
  }
  product = sum_of(product, LANES);
  if (lane == 0) call.delta[index] = product - (call.grad_lse ? call.grad_lse[index] : 0.0f);
}

// What flows back through one slot: P_ij and dS_ij, both 0 where the row does not see the key.
struct Slot {
  float weight, grad_score;
};

template <typename T>
__device__ Slot slot(const Call& call, const Keys& keys, int batch, int head, int i, int j, float product,
                     float grad_weight) {
  const float s = score<T>(call, keys, batch, head, i, j, product);
  if (s == MINUS_INFINITY) return {0.0f, 0.0f};
  const long long index = row_index(call, batch, head, i);
  const float p = expf(s - call.row_max[index]) / call.row_sum[index];
  return {p, p * (grad_weight - call.delta[index])};
}

template <int DIM>
struct BackwardTiles {
  static constexpr int COUNT = 512 / DIM;  // rows, or keys, of a warp
  static constexpr int BLOCK_COUNT = WARPS * COUNT;
  static constexpr int OWN_STRIDE = BLOCK_COUNT + 1, OTHER_STRIDE = DIM + 1, FACTOR_STRIDE = COUNT + 1;
  static constexpr int OWN = DIM * OWN_STRIDE, OTHER = LANES * OTHER_STRIDE, FACTORS = LANES * FACTOR_STRIDE;
  static constexpr int BYTES = 2 * bytes_of<float>(OWN) + 2 * bytes_of<float>(OTHER) + 2 * bytes_of<float>(WARPS * FACTORS);
};

// dQ: a block holds a tile of rows, each lane one key of a tile of keys. Writes dS where the mask's gradient is asked for.
template <typename T, int DIM>
__device__ void backward_query(const Call& call) {
  using Tile = BackwardTiles<DIM>;
  constexpr int ROWS = Tile::COUNT, SLICES = DIM / LANES;
  unsigned char* free = shared_memory;
  float* const query = carve<float>(free, Tile::OWN);        // (DIM, BLOCK_COUNT)
  float* const grad_output = carve<float>(free, Tile::OWN);  // (DIM, BLOCK_COUNT)
  float* const key = carve<float>(free, Tile::OTHER);        // (LANES, DIM)
  float* const value = carve<float>(free, Tile::OTHER);      // (LANES, DIM)
  const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  float* const grad_scores = carve<float>(free, WARPS * Tile::FACTORS) + warp * Tile::FACTORS;  // (LANES, ROWS)

  const int batch = blockIdx.x / call.q_heads, head = blockIdx.x % call.q_heads;
  const int first = blockIdx.y * Tile::BLOCK_COUNT, own = first + warp * ROWS;
  const Keys keys = keys_of(call, batch);
  const Range seen = keys_seen(call, keys, first, min(first + Tile::BLOCK_COUNT, call.q_len) - 1);
  load_transposed<T, float, DIM>(query, Tile::OWN_STRIDE, call.query, batch, head, first, Tile::BLOCK_COUNT, call.q_len,
                                 call.head_dim);
  load_transposed<T, float, DIM>(grad_output, Tile::OWN_STRIDE, call.grad_output, batch, head, first, Tile::BLOCK_COUNT,
                                 call.q_len, call.value_dim);

  float grad_query[SLICES][ROWS] = {};
  for (int tile = seen.begin; tile < seen.end; tile += LANES) {
    __syncthreads();  // all warps are done with the tile before
    load_tile<T, float, DIM>(key, Tile::OTHER_STRIDE, call.key, kv_batch(call, batch), kv_head(call, head), tile, LANES,
                             seen.end, call.head_dim);
    load_tile<T, float, DIM>(value, Tile::OTHER_STRIDE, call.value, kv_batch(call, batch), kv_head(call, head), tile,
                             LANES, seen.end, call.value_dim);
    __syncthreads();
    if (own >= call.q_len) continue;
    float dots[ROWS], grad_weights[ROWS];
    products(dots, query + warp * ROWS, Tile::OWN_STRIDE, key + lane * Tile::OTHER_STRIDE, call.head_dim);
    products(grad_weights, grad_output + warp * ROWS, Tile::OWN_STRIDE, value + lane * Tile::OTHER_STRIDE, call.value_dim);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const int i = own + r, j = tile + lane;
      const float ds = slot<T>(call, keys, batch, head, i, j, dots[r], grad_weights[r]).grad_score;
      grad_scores[lane * Tile::FACTOR_STRIDE + r] = ds;
      if (call.grad_scores.data && i < call.q_len && j < seen.end) call.grad_scores.at<float>(batch, head, i, j) = ds;
    }
    __syncwarp();
    accumulate<SLICES, ROWS>(grad_query, grad_scores, Tile::FACTOR_STRIDE, key, Tile::OTHER_STRIDE);
  }

#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    if (own + r >= call.q_len) continue;
#pragma unroll
    for (int d = 0; d < SLICES; ++d) {
      const int column = d * LANES + lane;
      if (column < call.head_dim) {
        store(call.grad_query.at<T>(batch, head, own + r, column), grad_query[d][r] * call.scale);
      }
    }
  }
}

// dK and dV: a block holds a tile of keys, each lane one row of a tile of rows; it sums over the batch elements and the
// query heads that read these keys.
template <typename T, int DIM>
__device__ void backward_key_value(const Call& call) {
  using Tile = BackwardTiles<DIM>;
  constexpr int KEYS = Tile::COUNT, SLICES = DIM / LANES;
  unsigned char* free = shared_memory;
  float* const key = carve<float>(free, Tile::OWN);            // (DIM, BLOCK_COUNT)
  float* const value = carve<float>(free, Tile::OWN);          // (DIM, BLOCK_COUNT)
  float* const query = carve<float>(free, Tile::OTHER);        // (LANES, DIM)
  float* const grad_output = carve<float>(free, Tile::OTHER);  // (LANES, DIM)
  const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  float* const weights = carve<float>(free, WARPS * Tile::FACTORS) + warp * Tile::FACTORS;      // (LANES, KEYS)
  float* const grad_scores = carve<float>(free, WARPS * Tile::FACTORS) + warp * Tile::FACTORS;  // (LANES, KEYS)

  const int own_batch = blockIdx.x / call.kv_heads, own_head = blockIdx.x % call.kv_heads;
  const int first = blockIdx.y * Tile::BLOCK_COUNT, own = first + warp * KEYS, group = call.q_heads / call.kv_heads;
  load_transposed<T, float, DIM>(key, Tile::OWN_STRIDE, call.key, own_batch, own_head, first, Tile::BLOCK_COUNT,
                                 call.k_len, call.head_dim);
  load_transposed<T, float, DIM>(value, Tile::OWN_STRIDE, call.value, own_batch, own_head, first, Tile::BLOCK_COUNT,
                                 call.k_len, call.value_dim);

  float grad_key[SLICES][KEYS] = {}, grad_value[SLICES][KEYS] = {};
  for (int batch = own_batch; batch < call.batch; batch += call.kv_batch) {
    const Keys keys = keys_of(call, batch);
    const int last = min(first + Tile::BLOCK_COUNT, keys.length) - 1;
    const Range seeing = last < first ? Range{0, 0} : rows_seeing(call, keys, first, last);
    for (int head = own_head * group; head < (own_head + 1) * group; ++head) {
      for (int tile = seeing.begin; tile < seeing.end; tile += LANES) {
        __syncthreads();  // all warps are done with the tile before
        load_tile<T, float, DIM>(query, Tile::OTHER_STRIDE, call.query, batch, head, tile, LANES, call.q_len,
                                 call.head_dim);
        load_tile<T, float, DIM>(grad_output, Tile::OTHER_STRIDE, call.grad_output, batch, head, tile, LANES, call.q_len,
                                 call.value_dim);
        __syncthreads();
        if (own >= call.k_len) continue;
        float dots[KEYS], grad_weights[KEYS];
        products(dots, key + warp * KEYS, Tile::OWN_STRIDE, query + lane * Tile::OTHER_STRIDE, call.head_dim);
        products(grad_weights, value + warp * KEYS, Tile::OWN_STRIDE, grad_output + lane * Tile::OTHER_STRIDE,
                 call.value_dim);
#pragma unroll
        for (int k = 0; k < KEYS; ++k) {
          const Slot back = slot<T>(call, keys, batch, head, tile + lane, own + k, dots[k], grad_weights[k]);
          weights[lane * Tile::FACTOR_STRIDE + k] = back.weight;
          grad_scores[lane * Tile::FACTOR_STRIDE + k] = back.grad_score;
        }
        __syncwarp();
        accumulate<SLICES, KEYS>(grad_value, weights, Tile::FACTOR_STRIDE, grad_output, Tile::OTHER_STRIDE);
        accumulate<SLICES, KEYS>(grad_key, grad_scores, Tile::FACTOR_STRIDE, query, Tile::OTHER_STRIDE);
      }
    }
  }

#pragma unroll
  for (int k = 0; k < KEYS; ++k) {
    if (own + k >= call.k_len) continue;
#pragma unroll
    for (int d = 0; d < SLICES; ++d) {
      const int column = d * LANES + lane;
      if (column < call.head_dim) {
        store(call.grad_key.at<T>(own_batch, own_head, own + k, column), grad_key[d][k] * call.scale);
      }
      if (column < call.value_dim) {
        store(call.grad_value.at<T>(own_batch, own_head, own + k, column), grad_value[d][k]);
      }
    }
  }
}
