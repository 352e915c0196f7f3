"""The mask of a prefix language model: the triangle, and the prefix in every row."""

import torch


def target(q_len, k_len, prefix_lengths, *, causal_alignment="upper_left"):
    if int(prefix_lengths.min()) < 0 or int(prefix_lengths.max()) > k_len:
        raise ValueError("a prefix has 0 to k_len tokens")
    diagonal = k_len - q_len if causal_alignment == "lower_right" else 0
    triangle = torch.ones(q_len, k_len, dtype=torch.bool).tril(diagonal)
    prefix = torch.arange(k_len) < prefix_lengths[:, None, None, None]  # (batch, 1, 1, k_len)
    return prefix | triangle
