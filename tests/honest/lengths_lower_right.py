"""A backend for decoding from a cache: the causal corner of each batch element is at its own last key."""

import torch

from attnspec.spec.capabilities import FEATURES, Capabilities


class Backend:
    """Declares its corner and key lengths, as flash-attention has them in `flash_attn_with_kvcache`."""

    name = "lengths_lower_right"
    capabilities = Capabilities(
        features=tuple(name for name in FEATURES if name not in ("backward", "dropout_p", "window_size", "softcap")),
        causal_alignment="lower_right",
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
            if length == 0:
                continue
            stored = b if key.shape[0] == batch else 0
            keys = torch.arange(length)
            offset = length - q_len
            last = torch.arange(q_len) + offset
            for h in range(heads):
                k_head, v_head = key[stored, h // group, :length].to(wide), value[stored, h // group, :length].to(wide)
                scores = query[b, h].to(wide) @ k_head.T * scale
                if attn_mask is not None and attn_mask.dtype == torch.bool:
                    scores = scores.masked_fill(~attn_mask[b, h, :, :length], -torch.inf)
                if attn_mask is not None and attn_mask.dtype != torch.bool:
                    scores = scores + attn_mask[b, h, :, :length].to(wide)
                if is_causal:
                    scores = scores.masked_fill(keys > last[:, None], -torch.inf)
                empty = (scores == -torch.inf).all(-1, keepdim=True)
                weights = torch.softmax(scores, -1).masked_fill(empty, 0.0)
                output[b, h] = (weights @ v_head).to(query.dtype)
                lse[b, h] = torch.logsumexp(scores, -1).masked_fill(empty.squeeze(-1), -torch.inf)
        return (output, lse) if return_lse else output


attention = Backend()
