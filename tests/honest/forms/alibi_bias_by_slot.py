"""The bias of ALiBi as a kernel has it: slot by slot, from the places of query and key in the sequence."""

import torch


def target(alibi_slopes, q_len, k_len, *, form="symmetric", alignment="upper_left", key_lengths=None):
    if not alibi_slopes.is_floating_point() or alibi_slopes.dim() > 2:
        raise TypeError("alibi_slopes is (heads,) or (batch, heads), of a floating dtype")
    per_batch = alibi_slopes.unsqueeze(0) if alibi_slopes.dim() == 1 else alibi_slopes
    lengths = [k_len] * len(per_batch) if key_lengths is None else key_lengths.tolist()
    if len(per_batch) not in (1, len(lengths)):
        raise TypeError("one row of slopes a batch element")
    per_batch = per_batch.expand(len(lengths), -1).double()
    batch, heads = per_batch.shape
    bias = torch.zeros(batch, heads, q_len, k_len, dtype=torch.promote_types(alibi_slopes.dtype, torch.float32))
    for b, length in enumerate(lengths):
        for i in range(q_len):
            place = i if alignment == "upper_left" else length - q_len + i
            for j in range(min(length, k_len)):
                behind = j - place if form == "signed" or j < place else place - j
                bias[b, :, i, j] = (per_batch[b] * behind).to(bias.dtype)
    return bias
