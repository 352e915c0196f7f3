"""A backend that reads, for each batch element and row, the slice of the keys that its window leaves; lower right."""

import torch

from attnspec.spec.capabilities import FEATURES, LATER, Capabilities


class Backend:
    """Declares windows at the lower right corner, as flash-attention and FlashInfer have them."""

    name = "window_lower_right"
    capabilities = Capabilities(
        features=(*(name for name in FEATURES if name not in LATER), "key_lengths", "window_size"),
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
        window_size=None,
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
        left, right = (-1, -1) if window_size is None else window_size
        if left < -1 or right < -1:
            raise ValueError("a side of the window is below -1")
        if is_causal:
            right = 0
        scale = head_dim**-0.5 if scale is None else scale
        group = heads // key.shape[1]
        output = torch.zeros(batch, heads, q_len, value_dim, dtype=query.dtype)
        lse = torch.full((batch, heads, q_len), -torch.inf, dtype=wide)
        if attn_mask is not None:
            attn_mask = attn_mask.expand(batch, heads, q_len, k_len)
        key, value = (x.expand(batch, -1, -1, -1).repeat_interleave(group, dim=1).to(wide) for x in (key, value))
        for b, length in enumerate(lengths.tolist()):
            for row in range(q_len):
                place = row + length - q_len
                first = max(0, place - left) if left >= 0 else 0
                end = min(length, place + right + 1) if right >= 0 else length
                if end <= first:
                    continue
                scores = (key[b, :, first:end] @ query[b, :, row, :, None].to(wide)).squeeze(-1) * scale
                if attn_mask is not None and attn_mask.dtype == torch.bool:
                    scores = scores.masked_fill(~attn_mask[b, :, row, first:end], -torch.inf)
                if attn_mask is not None and attn_mask.dtype != torch.bool:
                    scores = scores + attn_mask[b, :, row, first:end].to(wide)
                empty = (scores == -torch.inf).all(-1, keepdim=True)
                weights = torch.softmax(scores, -1).masked_fill(empty, 0.0)
                output[b, :, row] = (weights[:, None] @ value[b, :, first:end]).squeeze(1).to(query.dtype)
                lse[b, :, row] = torch.logsumexp(scores, -1)
        return (output, lse) if return_lse else output


attention = Backend()
