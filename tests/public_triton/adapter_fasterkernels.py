"""fasterkernels 0.2.0: a forward pass without masks, and decoding of ragged batches with grouped heads and sinks."""

import torch
from interpreter import as_if_on_a_gpu, interpreted

flash_attention_2_fwd = interpreted("fskernels.triton.triton_fa2").flash_attention_2_fwd
flash_decode_gqa_varlen = interpreted("fskernels.triton.triton_gqa_decode").flash_decode_gqa_varlen


def forward(query, key, value, scale=None):
    with as_if_on_a_gpu():
        return flash_attention_2_fwd(query, key, value, sm_scale=scale)


def decode(query, key, value, enable_gqa=False, key_lengths=None, sinks=None):
    """Each row is decoded alone, as the package has one query at a time."""
    lengths = [key.shape[2]] * len(query) if key_lengths is None else key_lengths.tolist()
    packed = [torch.cat([x[b, :, :length].transpose(0, 1) for b, length in enumerate(lengths)]) for x in (key, value)]
    ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    with as_if_on_a_gpu():
        rows = [flash_decode_gqa_varlen(row, *packed, ends, s_aux=sinks) for row in query.unbind(2)]
    return torch.stack(rows, 2)
