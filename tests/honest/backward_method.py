"""A backend without autograd: it is asked for its gradients by a method that gets the call and its result."""

import torch
from honest_backward import expand, of_the_mask, sum_readers
from honest_parts import check_shapes, hide, result, softmax, wide

from attnspec.spec.capabilities import FEATURES, Capabilities


class Backend:
    """Declares the backward pass, and keeps nothing between the two."""

    name = "backward_method"
    capabilities = Capabilities(
        features=tuple(name for name in FEATURES if name not in ("key_lengths", "dropout_p", "window_size", "softcap"))
    )

    @torch.no_grad()
    def __call__(
        self, query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False
    ):
        check_shapes(query, key, value)
        weights, lse = weights_of(query, key, value, attn_mask, is_causal, scale)
        return result(weights @ list(expand(query, key, value))[1], lse, query, return_lse)

    @torch.no_grad()
    def backward(self, call, result):
        query, key, value, dtype = call.query, call.key, call.value, call.query.dtype
        k, v = expand(query, key, value)
        p, _ = weights_of(query, key, value, call.attn_mask, call.is_causal, call.scale)
        do, scale = wide(call.grad_output), query.shape[-1] ** -0.5 if call.scale is None else call.scale
        dp = do @ v.transpose(-1, -2)
        ds = p * (dp - (do * wide(result.output)).sum(-1, keepdim=True))
        ds = ds if call.grad_lse is None else ds + p * call.grad_lse[..., None]
        dk = sum_readers(scale * (ds.transpose(-1, -2) @ wide(query)), key.shape)
        dv = sum_readers(p.transpose(-1, -2) @ do, value.shape)
        return (scale * (ds @ k)).to(dtype), dk.to(dtype), dv.to(dtype), of_the_mask(call.attn_mask, ds)


def weights_of(query, key, value, attn_mask, is_causal, scale):
    """Return the weights and the lse."""
    k, _ = expand(query, key, value)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return softmax(hide(wide(query) @ k.transpose(-1, -2) * scale, attn_mask, is_causal))


attention = Backend()
