// softmax(Q K^T scale) V of one head in float32, head_dim 32. A warp has a query row, a lane a key of the tile.
// query, output: (q_len, 32); key, value: (k_len, 32); rows[0] counts the rows done. Shared memory: 32 * 36 + 32 * 32
// floats.
#ifdef CUDA_EMULATOR
using cuda_emulator::carve;
#else
template <class T>
__device__ T* carve(unsigned char*& at, size_t count) {
  T* array = reinterpret_cast<T*>(at);
  at += (count * sizeof(T) + 15) / 16 * 16;
  return array;
}
#endif

constexpr int DIM = 32, TILE = 32, WARPS = 4, STRIDE = DIM + 4;
constexpr unsigned ALL = 0xffffffffu;

__device__ float warp_max(float x) {
  for (int o = 16; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, o));
  return x;
}

__device__ float warp_sum(float x) {
  for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(ALL, x, o);
  return x;
}

__device__ void load(float* to, const float* from, bool there) {
  float4* four = reinterpret_cast<float4*>(to);
  *four = there ? *reinterpret_cast<const float4*>(from) : make_float4(0, 0, 0, 0);
}

extern "C" __global__ void attention(const float* query, const float* key, const float* value, float* output, int* rows,
                                     int q_len, int k_len, float scale) {
  extern __shared__ __align__(16) unsigned char pool[];
  unsigned char* at = pool;
  float* keys = carve<float>(at, TILE * STRIDE);
  float* values = carve<float>(at, TILE * DIM);
  __shared__ float queries[WARPS][DIM], weights[WARPS][TILE];

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x * WARPS + warp;
  const bool real = row < q_len;
  queries[warp][lane] = real ? query[row * DIM + lane] * scale : 0.0f;
  __syncwarp();

  float sum = 0, largest = -INFINITY, result = 0;
  for (int first = 0; first < k_len; first += TILE) {
    __syncthreads();  // the tile before has been read
    for (int i = threadIdx.x; i < TILE * DIM / 4; i += blockDim.x) {
      const int j = i / (DIM / 4), c = i % (DIM / 4) * 4, from = (first + j) * DIM + c;
      load(keys + j * STRIDE + c, key + from, first + j < k_len);
      load(values + j * DIM + c, value + from, first + j < k_len);
    }
    __syncthreads();  // the tile is here
    float score = 0;
    for (int c = 0; c < DIM; ++c) score += queries[warp][c] * keys[lane * STRIDE + c];
    if (first + lane >= k_len) score = -INFINITY;
    const float next = fmaxf(largest, warp_max(score));
    const float weight = __expf(score - next), factor = __expf(largest - next);
    sum = sum * factor + warp_sum(weight);
    largest = next;
    weights[warp][lane] = weight;
    __syncwarp();  // the weights are here
    result *= factor;
    for (int j = 0; j < TILE; ++j) result += weights[warp][j] * values[j * DIM + lane];
  }
  if (real) output[row * DIM + lane] = result / sum;
  if (real && lane == 0) atomicAdd(rows, 1);
}
