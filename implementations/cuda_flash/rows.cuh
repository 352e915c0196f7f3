// The end of a row: output and lse, or a part of them where the keys are split, and the merge of parts (spec chapter
// "flash-attention", "Merging").
#pragma once
#include "call.cuh"

// The share of the range that part `part` of call.splits sees.
__device__ inline Range part_of(const Call& call, const Range& range, int part) {
  const int each = (max(range.end - range.begin, 0) + call.splits - 1) / call.splits;
  const int begin = range.begin + part * each;
  return {begin, min(begin + each, range.end)};
}

struct Row {
  int batch, head, row;
  float sum;
  long long part;  // its number among the rows of all parts, -1 where the keys are not split
};

// Writes the row's statistics (one lane does), and returns what `store_output` needs.
__device__ inline Row finish(const Call& call, int batch, int head, int row, int part, float maximum, float sum,
                             bool writes) {
  const long long index = row_index(call, batch, head, row);
  if (call.splits > 1) {
    const long long at = index + static_cast<long long>(part) * call.batch * call.q_heads * call.q_len;
    if (writes) {
      call.part_max[at] = maximum;
      call.part_sum[at] = sum;
    }
    return {batch, head, row, sum, at};
  }
  if (writes) {
    call.row_max[index] = maximum;
    call.row_sum[index] = sum;
    call.lse[index] = maximum + logf(sum);  // -inf in a row that sees no key
  }
  return {batch, head, row, sum, -1};
}

// o = O / l; 0 in a row that sees no key.
template <typename T>
__device__ void store_output(const Call& call, const Row& row, int column, float x) {
  if (column >= call.value_dim) return;
  if (row.part >= 0) {
    call.part_output[row.part * call.value_dim + column] = x;
  } else {
    store(call.output.at<T>(row.batch, row.head, row.row, column), row.sum == 0.0f ? 0.0f : x / row.sum);
  }
}

// Merges the parts of a row, a warp for each row: m = max_p m_p, l = sum_p exp(m_p - m) l_p, O likewise.
template <typename T>
__device__ void merge(const Call& call) {
  const int lane = threadIdx.x % LANES;
  const long long rows = static_cast<long long>(call.batch) * call.q_heads * call.q_len;
  const long long index = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / LANES;
  if (index >= rows) return;
  float maximum = MINUS_INFINITY, sum = 0.0f;
  for (int part = 0; part < call.splits; ++part) maximum = fmaxf(maximum, call.part_max[part * rows + index]);
  for (int part = 0; part < call.splits; ++part) {
    sum += weight(call.part_max[part * rows + index], maximum) * call.part_sum[part * rows + index];
  }
  if (lane == 0) {
    call.row_max[index] = maximum;
    call.row_sum[index] = sum;
    call.lse[index] = maximum + logf(sum);
  }
  const int row = index % call.q_len, head = index / call.q_len % call.q_heads, batch = index / call.q_len / call.q_heads;
  const Row whole = {batch, head, row, sum, -1};
  for (int column = lane; column < call.value_dim; column += LANES) {
    float x = 0.0f;
    for (int part = 0; part < call.splits; ++part) {
      const long long at = part * rows + index;
      x += weight(call.part_max[at], maximum) * call.part_output[at * call.value_dim + column];
    }
    store_output<T>(call, whole, column, x);
  }
}
