"""A backend for decoding from a cache: the causal corner of each batch element is at its own last key."""

import torch

from attnspec.spec.capabilities import FEATURES, Capabilities


class Backend:
    """Declares its corner and key lengths, as flash-attention has them in `flash_attn_with_kvcache`."""

    name = "lengths_lower_right"
    capabilities = Capabilities(
        features=tuple(feature for feature in FEATURES if feature != "backward"), causal_alignment="lower_right"
    )

    def __call__(
        self,
        query,
        key,
        value,
        attn_mask=None,
        is_causal=False,
        scale=None,
        enable_gqa=False,
        key_lengths=None,
        return_lse=False,
    ):
        if not (query.ndim == 4 and key.shape[:3] == value.shape[:3] and key.shape[3] == query.shape[3]):
            raise ValueError("query, key and value do not fit each other")
        if key.shape[0] not in (1, query.shape[0]) or query.shape[1] % key.shape[1]:
            raise ValueError("batch or heads of query and key do not fit")
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        batch, heads, q_len, head_dim = query.shape
        k_len, value_dim = value.shape[-2:]
        lengths = torch.full((batch,), k_len) if key_lengths is None else key_lengths
        if lengths.shape != (batch,) or lengths.dtype not in (torch.int32, torch.int64):
            raise ValueError("key_lengths must be one int32 or int64 a batch element")
        if any(not 0 <= length <= k_len for length in lengths.tolist()):
            raise ValueError("a key length is below 0 or beyond the keys")
        scale = head_dim**-0.5 if scale is None else scale
        group = heads // key.shape[1]
        output = torch.zeros(batch, heads, q_len, value_dim, dtype=query.dtype)
        lse = torch.full((batch, heads, q_len), -torch.inf, dtype=wide)
        if attn_mask is not None:
            attn_mask = attn_mask.expand(batch, heads, q_len, k_len)
        for b, length in enumerate(lengths.tolist()):
            stored = b if key.shape[0] == batch else 0
            offset = length - q_len
            for h in range(heads):
                kv_head = h // group
                k_head, v_head = key[stored, kv_head].to(wide), value[stored, kv_head].to(wide)
                for row in range(q_len):
                    last = row + offset if is_causal else length - 1
                    keys = torch.arange(max(last + 1, 0))
                    scores = k_head[keys] @ query[b, h, row].to(wide) * scale
                    if attn_mask is not None and attn_mask.dtype == torch.bool:
                        scores = scores.masked_fill(~attn_mask[b, h, row, keys], -torch.inf)
                    if attn_mask is not None and attn_mask.dtype != torch.bool:
                        scores = scores + attn_mask[b, h, row, keys].to(wide)
                    if len(keys) == 0 or scores.amax() == -torch.inf:
                        continue
                    weights = torch.softmax(scores, -1)
                    output[b, h, row] = (weights @ v_head[keys]).to(query.dtype)
                    lse[b, h, row] = torch.logsumexp(scores, -1)
        return (output, lse) if return_lse else output


attention = Backend()
