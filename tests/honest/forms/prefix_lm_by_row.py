"""The mask of a prefix language model, row by row: the first keys up to the prefix or the diagonal, what is further."""

import torch


def target(q_len, k_len, prefix_lengths, *, causal_alignment="upper_left"):
    lengths = prefix_lengths.tolist()
    mask = torch.zeros(len(lengths), 1, q_len, k_len, dtype=torch.bool)
    for b, length in enumerate(lengths):
        if not 0 <= length <= k_len:
            raise ValueError(f"prefix {length} of {k_len} tokens")
        for i in range(q_len):
            place = i if causal_alignment == "upper_left" else i + k_len - q_len
            mask[b, 0, i, : max(length, place + 1, 0)] = True
    return mask
