"""The mask of documents: where the numbers of query and key are the same and count."""

import torch


def target(query_documents, key_documents, *, is_causal=False):
    same = query_documents[:, None, :, None] == key_documents[:, None, None, :]  # (batch, 1, q_len, k_len)
    mask = same & (query_documents >= 0)[:, None, :, None]
    if is_causal:
        mask = mask & torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    return mask
