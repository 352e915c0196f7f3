"""The budget of the gradients of latent attention: a backward pass in the expanded and in the absorbed form, each with
an error at every step, and what these errors do to the results (chapter "accuracy", "Derivation for the forms").

Shapes of a head: nope (q_len, nope_dim), rope (q_len, rope_dim), latent (k_len, kv_rank), key_rope (k_len, rope_dim),
w_uk (nope_dim, kv_rank), w_uv (value_dim, kv_rank), grad_output (q_len, value_dim), grad_lse (q_len, 1), visible
(q_len, k_len); those of a batch element have the heads before them, but for latent and key_rope. All are float64.
"""

from __future__ import annotations

from functools import partial

import torch

from attnspec.conformance.forms.projections import inner_products, layer_error
from attnspec.conformance.forms.propagation import Bound, propagated
from attnspec.conformance.forms.softmax_backward import softmax_errors, summed, through_softmax
from attnspec.conformance.forms.target import Tensors
from attnspec.conformance.gradient_errors import Backward
from attnspec.conformance.rows import Arithmetic, Rows

OF_HEADS = ("latent", "key_rope")  # results that the heads add up
OF_BATCH = ("w_uk", "w_uv")  # results that the batch elements add up


def gradient_budgets(inputs: Tensors, visible: torch.Tensor, scale: float, a: Arithmetic) -> Tensors:
    """Return the budget of each element of the gradients of query, latent, key_rope, w_uk and w_uv, float64, each of
    the shape of its input: the larger one of the two forms.

    inputs: the tensors of a case with what flows back, the cache 0 where no query sees a token; visible: (batch,
    heads, q_len, k_len). Rules: `accuracy.latent-within-budget`, `latent.gradient`.
    """
    wide = {name: x.double() for name, x in inputs.items() if name != "key_lengths"}
    nope_dim = wide["w_uk"].shape[1]
    nope, rope = wide["query"][..., :nope_dim], wide["query"][..., nope_dim:]
    grad_lse = wide.get("grad_lse", torch.zeros(visible.shape[:3], dtype=torch.float64))[..., None]
    of_ways = []
    for bounds_of in (expanded_bounds, absorbed_bounds):
        found: dict[str, list[Bound]] = {}
        for b, seen in enumerate(visible):
            x = {name: wide[name][b] for name in (*OF_HEADS, "grad_output")}
            x |= {"nope": nope[b], "rope": rope[b], "grad_lse": grad_lse[b], "visible": seen}
            for name, bound in bounds_of(x | {name: wide[name] for name in OF_BATCH}, scale, a).items():
                found.setdefault(name, []).append(bound.added(a) if name in OF_HEADS else bound)
        stacked = {name: Bound.stacked(bounds) for name, bounds in found.items()}
        of_ways.append({name: (x.added(a) if name in OF_BATCH else x).budget(a) for name, x in stacked.items()})
    return {name: torch.maximum(budget, of_ways[1][name]) for name, budget in of_ways[0].items()}


def expanded_pass(x: Tensors, e: Tensors, scale: float) -> Tensors:
    """Return the gradients of one head where keys and values are made of the cache, with errors e at the steps."""
    key = x["latent"] @ x["w_uk"].mT + e["key"]  # (k_len, nope_dim)
    value = x["latent"] @ x["w_uv"].mT + e["value"]  # (k_len, value_dim)
    scores = scale * (x["nope"] @ key.mT + x["rope"] @ x["key_rope"].mT)
    weights, back = through_softmax(scores, x["grad_output"] @ value.mT, x, e, scale)
    grad_key = back.mT @ x["nope"] + e["grad_key"]  # (k_len, nope_dim)
    grad_value = weights.mT @ x["grad_output"] + e["grad_value"]  # (k_len, value_dim)
    return {
        "query": torch.cat([back @ key, back @ x["key_rope"]], -1),
        "latent": grad_key @ x["w_uk"] + grad_value @ x["w_uv"],
        "key_rope": back.mT @ x["rope"],
        "w_uk": grad_key.mT @ x["latent"],
        "w_uv": grad_value.mT @ x["latent"],
    }


def absorbed_pass(x: Tensors, e: Tensors, scale: float) -> Tensors:
    """Return the gradients of one head where W^UK goes into the query, and W^UV out of the sum, with errors e at the
    steps."""
    query = x["nope"] @ x["w_uk"] + e["query"]  # (q_len, kv_rank)
    flow = x["grad_output"] @ x["w_uv"] + e["flow"]  # (q_len, kv_rank)
    scores = scale * (query @ x["latent"].mT + x["rope"] @ x["key_rope"].mT)
    weights, back = through_softmax(scores, flow @ x["latent"].mT, x, e, scale)
    grad_query = back @ x["latent"] + e["grad_query"]  # (q_len, kv_rank)
    attended = weights @ x["latent"] + e["attended"]  # (q_len, kv_rank)
    return {
        "query": torch.cat([grad_query @ x["w_uk"].mT, back @ x["key_rope"]], -1),
        "latent": back.mT @ query + weights.mT @ flow,
        "key_rope": back.mT @ x["rope"],
        "w_uk": x["nope"].mT @ grad_query,
        "w_uv": x["grad_output"].mT @ attended,
    }


def expanded_bounds(x: Tensors, scale: float, a: Arithmetic) -> dict[str, Bound]:
    """Return what the gradients of the heads of one batch element may be off by in the expanded form."""
    key, value = x["latent"] @ x["w_uk"].mT, x["latent"] @ x["w_uv"].mT  # (heads, k_len, ...)
    rope = x["key_rope"].expand(len(key), -1, -1)
    query, flow = torch.cat([x["nope"], x["rope"]], -1), x["grad_output"]
    rows = Rows.of(query, torch.cat([key, rope], -1), value, None, x["visible"], scale, a)
    random, fixed, back = softmax_errors(rows, x["visible"], Backward(flow, x["grad_lse"], value, 1.0))
    for name, weight in (("key", "w_uk"), ("value", "w_uv")):
        random[name] = torch.stack([layer_error(x["latent"], w, None, a.work, a.output) for w in x[weight]])
    grad_key, of_key = summed(back.mT, x["nope"], a)
    grad_value, of_value = summed(rows.p.mT, flow, a)
    random |= {"grad_key": _stored(of_key, grad_key, a), "grad_value": _stored(of_value, grad_value, a)}
    latent = [_layer(grad_key, x["w_uk"], a), _layer(grad_value, x["w_uv"], a)]
    last = {
        "query": summed(back, torch.cat([key, rope], -1), a)[1],
        "latent": _paths(latent, a),
        "key_rope": summed(back.mT, x["rope"], a)[1],
        "w_uk": _layer(grad_key.mT, x["latent"], a)[1],
        "w_uv": _layer(grad_value.mT, x["latent"], a)[1],
    }
    return propagated(partial(expanded_pass, scale=scale), x, OF_HEADS, random, fixed, last)


def absorbed_bounds(x: Tensors, scale: float, a: Arithmetic) -> dict[str, Bound]:
    """Return what the gradients of the heads of one batch element may be off by in the absorbed form."""
    heads = len(x["w_uk"])
    query, flow = x["nope"] @ x["w_uk"], x["grad_output"] @ x["w_uv"]  # (heads, q_len, kv_rank)
    latent, rope = (x[name].expand(heads, -1, -1) for name in ("latent", "key_rope"))
    whole = torch.cat([query, x["rope"]], -1)
    rows = Rows.of(whole, torch.cat([latent, rope], -1), latent, None, x["visible"], scale, a)
    random, fixed, back = softmax_errors(rows, x["visible"], Backward(flow, x["grad_lse"], latent, 1.0))
    for name, token, weight in (("query", "nope", "w_uk"), ("flow", "grad_output", "w_uv")):
        given = zip(x[token], x[weight], strict=True)
        random[name] = torch.stack([layer_error(t, w.mT, None, a.work, a.output) for t, w in given])
    apart = scale**2 * ((query @ latent.mT) ** 2 + (x["rope"] @ rope.mT) ** 2)  # scores of the two parts, stored
    random["weight"] = torch.sqrt(random["weight"] ** 2 + a.scores**2 * torch.where(rows.p > 0, apart, 0.0))
    attended, of_attended = summed(rows.p, latent, a)
    output = attended @ x["w_uv"].mT  # which delta may be made of, as well as of `attended`
    of_output = a.output**2 * ((x["grad_output"] * output) ** 2).sum(-1, keepdim=True)
    random["delta"] = torch.sqrt(random["delta"] ** 2 + of_output)
    grad_query, of_query = summed(back, latent, a)
    random |= {"grad_query": _stored(of_query, grad_query, a), "attended": _stored(of_attended, attended, a)}
    of_nope, of_rope = _layer(grad_query, x["w_uk"].mT, a)[1], summed(back, rope, a)[1]
    last = {
        "query": torch.cat([of_nope, of_rope], -1),
        "latent": _paths([summed(back.mT, query, a), summed(rows.p.mT, flow, a)], a),
        "key_rope": summed(back.mT, x["rope"], a)[1],
        "w_uk": _layer(x["nope"].mT, grad_query, a)[1],
        "w_uv": _layer(x["grad_output"].mT, attended, a)[1],
    }
    return propagated(partial(absorbed_pass, scale=scale), x, OF_HEADS, random, fixed, last)


def _layer(left: torch.Tensor, right: torch.Tensor, a: Arithmetic) -> tuple[torch.Tensor, torch.Tensor]:
    """Return left @ right, the products of a layer, and what their roundings amount to in units of CONFIDENCE."""
    total = left @ right
    return total, inner_products(left.shape[-1], total, torch.sqrt(left**2 @ right**2), a.work)


def _stored(error: torch.Tensor, total: torch.Tensor, a: Arithmetic) -> torch.Tensor:
    """Return the error of a sum with that of its store."""
    return torch.sqrt(error**2 + (a.output * total).square() + a.tiny**2)


def _paths(paths: list[tuple[torch.Tensor, torch.Tensor]], a: Arithmetic) -> torch.Tensor:
    """Return the error of a gradient that two paths add up to, each of which may be stored by every head, and once more
    when the heads are added up, which is spread over the heads here."""
    square = torch.zeros(())
    for total, error in paths:
        of_heads = (a.weights * total.sum(0)) ** 2 / len(total)
        square = square + error**2 + (a.weights * total) ** 2 + of_heads
    return torch.sqrt(square)
