"""A backend that never multiplies what is hidden: NaN in hidden keys and values stays where it is."""

import torch

from attnspec.spec.capabilities import Capabilities


class Backend:
    """Declares that it contains NaN."""

    name = "careful"
    capabilities = Capabilities(contains_nan=True)

    def __call__(
        self, query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False
    ):
        if not (query.ndim == 4 and key.shape[:3] == value.shape[:3] and key.shape[3] == query.shape[3]):
            raise ValueError("query, key and value do not fit each other")
        if key.shape[0] not in (1, query.shape[0]) or query.shape[1] % key.shape[1]:
            raise ValueError("batch or heads of query and key do not fit")
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        batch, heads, q_len, head_dim = query.shape
        k_len, value_dim = value.shape[-2:]
        scale = head_dim**-0.5 if scale is None else scale
        key = key.expand(batch, -1, -1, -1).repeat_interleave(heads // key.shape[1], dim=1).to(wide)
        value = value.expand(batch, -1, -1, -1).repeat_interleave(heads // value.shape[1], dim=1).to(wide)
        if attn_mask is not None:
            attn_mask = attn_mask.expand(batch, heads, q_len, k_len)
        visible = torch.ones(batch, heads, q_len, k_len, dtype=torch.bool)
        bias = torch.zeros(batch, heads, q_len, k_len, dtype=wide)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            visible = visible & attn_mask
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            visible = visible & (attn_mask != -torch.inf)
            bias = bias + attn_mask.to(wide)
        if is_causal:
            visible = visible & torch.ones(q_len, k_len, dtype=torch.bool).tril()
        output = torch.zeros(batch, heads, q_len, value_dim, dtype=query.dtype)
        lse = torch.full((batch, heads, q_len), -torch.inf, dtype=wide)
        for b, h, i in torch.cartesian_prod(*map(torch.arange, (batch, heads, q_len))).tolist():
            keys = visible[b, h, i].nonzero().flatten()
            if len(keys) == 0:
                continue
            scores = key[b, h, keys] @ query[b, h, i].to(wide) * scale + bias[b, h, i, keys]
            weights = torch.exp(scores - scores.amax())
            output[b, h, i] = (weights @ value[b, h, keys] / weights.sum()).to(query.dtype)
            lse[b, h, i] = scores.amax() + torch.log(weights.sum())
        return (output, lse) if return_lse else output


attention = Backend()
