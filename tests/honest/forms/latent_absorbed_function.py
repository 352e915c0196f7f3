"""Latent attention in its absorbed form as a torch.autograd.Function: what it keeps is the lse, and the backward pass
makes the weights again and takes every gradient by hand, without keys or values of the heads."""

import torch


def scores_of(query, latent, key_rope, w_uk, visible, scale):
    """q' = q W^UK, and the scores over the cache, float32 or float64."""
    nope, rope = query.split([w_uk.shape[1], key_rope.shape[2]], dim=-1)
    absorbed = torch.einsum("bhqn,hnr->bhqr", nope, w_uk)
    scores = torch.einsum("bhqr,bkr->bhqk", absorbed, latent) + torch.einsum("bhqp,bkp->bhqk", rope, key_rope)
    return absorbed, (scores * scale).masked_fill(~visible, -torch.inf)


class Absorbed(torch.autograd.Function):
    """The output and the lse of each head."""

    @staticmethod
    def forward(ctx, query, latent, key_rope, w_uk, w_uv, visible, scale):
        wide, seen = torch.promote_types(query.dtype, torch.float32), visible.any(-2)[:, 0, :, None]
        latent, key_rope = torch.where(seen, latent, 0.0), torch.where(seen, key_rope, 0.0)
        q, c, kr, up_k, up_v = (x.to(wide) for x in (query, latent, key_rope, w_uk, w_uv))
        _, scores = scores_of(q, c, kr, up_k, visible, scale)
        lse = torch.logsumexp(scores, -1, keepdim=True)
        weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0.0))
        attended = torch.einsum("bhqk,bkr->bhqr", weights, c)
        output = torch.einsum("bhqr,hvr->bhqv", attended, up_v)
        ctx.save_for_backward(query, latent, key_rope, w_uk, w_uv, visible, lse)
        ctx.scale = scale
        return output.to(query.dtype), lse.squeeze(-1)

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        *given, visible, lse = ctx.saved_tensors
        q, c, kr, up_k, up_v, flow = (x.to(lse.dtype) for x in (*given, grad_output))
        nope_dim = up_k.shape[1]
        absorbed, scores = scores_of(q, c, kr, up_k, visible, ctx.scale)
        weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0.0))
        attended = torch.einsum("bhqk,bkr->bhqr", weights, c)
        returned = torch.einsum("bhqv,hvr->bhqr", flow, up_v)  # what flows back to the sum over the cache
        delta = (returned * attended).sum(-1, keepdim=True)
        grad_weights = torch.einsum("bhqr,bkr->bhqk", returned, c)
        grad_scores = weights * (grad_weights - delta + grad_lse[..., None]) * ctx.scale
        grad_absorbed = torch.einsum("bhqk,bkr->bhqr", grad_scores, c)
        grad_nope = torch.einsum("bhqr,hnr->bhqn", grad_absorbed, up_k)
        grad_rope = torch.einsum("bhqk,bkp->bhqp", grad_scores, kr)
        gradients = (
            torch.cat([grad_nope, grad_rope], -1),
            torch.einsum("bhqk,bhqr->bkr", grad_scores, absorbed) + torch.einsum("bhqk,bhqr->bkr", weights, returned),
            torch.einsum("bhqk,bhqp->bkp", grad_scores, q[..., nope_dim:]),
            torch.einsum("bhqn,bhqr->hnr", q[..., :nope_dim], grad_absorbed),
            torch.einsum("bhqv,bhqr->hvr", flow, attended),
        )
        return *(x.to(given[0].dtype) for x in gradients), None, None


def target(query, latent, key_rope, w_uk, w_uv, *, is_causal=False, causal_alignment="upper_left", scale=None,
           key_lengths=None):  # fmt: skip
    (batch, heads, q_len, head_dim), k_len = query.shape, latent.shape[1]
    if w_uk.shape != (heads, head_dim - key_rope.shape[2], latent.shape[2]) or len(w_uv) != heads:
        raise ValueError("the matrices do not fit the query and the cache")
    lengths = torch.full((batch,), k_len) if key_lengths is None else key_lengths
    if (lengths < 0).any() or (lengths > k_len).any():
        raise ValueError("a length is beyond the cache")
    keys = torch.arange(k_len)
    visible = (keys < lengths[:, None, None, None]).expand(batch, 1, q_len, k_len)
    if is_causal:
        offset = (lengths - q_len)[:, None, None, None] if causal_alignment == "lower_right" else 0
        visible = visible & (keys <= torch.arange(q_len)[:, None] + offset)
    scale = head_dim**-0.5 if scale is None else scale
    return Absorbed.apply(query, latent, key_rope, w_uk, w_uv, visible, scale)
