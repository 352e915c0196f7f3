// One call of the kernels: its tensors and sizes, and which keys a row sees (spec chapters "notation", "masks", "window").
#pragma once
#include "platform.cuh"

// A tensor (batch, heads, length, dim) and its strides, in elements; data is null where there is none.
struct Strided {
  void* data;
  long long batch, head, row, column;

  template <typename T>
  __device__ T& at(int b, int h, int i, int d) const {
    return static_cast<T*>(data)[b * batch + h * head + i * row + d * column];
  }
};

enum Mask { NO_MASK, BOOL_MASK, ADDITIVE_MASK };

// Passed by value to every kernel; `arguments.py` declares the same fields in the same order. Statistics of rows, (batch,
// q_heads, q_len), are contiguous float32, those of parts (splits, batch, q_heads, q_len).
struct Call {
  Strided query, key, value, mask, output;
  Strided grad_output, grad_query, grad_key, grad_value, grad_scores;
  float *lse, *row_max, *row_sum;                 // lse = row_max + log(row_sum)
  float *part_output, *part_max, *part_sum;       // of one part of the keys, before the division by the sum
  const float* grad_lse;                          // null: zero
  float* delta;
  const int* key_lengths;                         // (batch,); null: all keys exist
  int batch, q_heads, q_len, kv_batch, kv_heads, k_len, head_dim, value_dim;
  int left, right;                                // the window, the causal triangle included; -1: no bound
  int lower_right, mask_kind, splits;
  float scale;
};

__device__ inline int kv_head(const Call& call, int head) { return head / (call.q_heads / call.kv_heads); }

__device__ inline int kv_batch(const Call& call, int batch) { return call.kv_batch == 1 ? 0 : batch; }

__device__ inline long long row_index(const Call& call, int batch, int head, int row) {
  return (static_cast<long long>(batch) * call.q_heads + head) * call.q_len + row;
}

// The keys of one batch element: how many exist, and by how much the diagonal is shifted against the row's own number.
struct Keys {
  int length, shift;
};

__device__ inline Keys keys_of(const Call& call, int batch) {
  const int length = call.key_lengths ? call.key_lengths[batch] : call.k_len;
  return {length, call.lower_right ? length - call.q_len : 0};
}

struct Range {
  int begin, end;
};

// The keys that the rows first .. last may see: no key outside is visible to any of them.
__device__ inline Range keys_seen(const Call& call, const Keys& keys, int first, int last) {
  const int begin = call.left < 0 ? 0 : first + keys.shift - call.left;
  const int end = call.right < 0 ? keys.length : last + keys.shift + call.right + 1;
  return {max(begin, 0), min(end, keys.length)};
}

// The rows that may see one of the keys first .. last.
__device__ inline Range rows_seeing(const Call& call, const Keys& keys, int first, int last) {
  const int begin = call.right < 0 ? 0 : first - keys.shift - call.right;
  const int end = call.left < 0 ? call.q_len : last - keys.shift + call.left + 1;
  return {max(begin, 0), min(end, call.q_len)};
}

// s = scale * (q . k) + bias where row i sees key j, -inf where it does not, whatever the product is.
template <typename T>
__device__ float score(const Call& call, const Keys& keys, int batch, int head, int i, int j, float product) {
  const int distance = j - (i + keys.shift);
  const bool hidden = i >= call.q_len || j >= keys.length || (call.left >= 0 && distance < -call.left) ||
                      (call.right >= 0 && distance > call.right);
  if (hidden) return MINUS_INFINITY;
  if (call.mask_kind == BOOL_MASK) {
    return call.mask.at<unsigned char>(batch, head, i, j) ? product * call.scale : MINUS_INFINITY;
  }
  if (call.mask_kind == ADDITIVE_MASK) {
    const float bias = to_float(call.mask.at<T>(batch, head, i, j));
    return bias == MINUS_INFINITY ? MINUS_INFINITY : product * call.scale + bias;
  }
  return product * call.scale;
}

// exp(s - maximum), 0 for a hidden key also while the maximum is -inf.
__device__ inline float weight(float s, float maximum) { return s == MINUS_INFINITY ? 0.0f : expf(s - maximum); }
