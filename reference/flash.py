"""FlashAttention: attention in tiles with an online softmax, and its backward pass (chapter "FlashAttention").

The order is that of Dao 2023: for each tile of rows, one pass over the tiles of keys. No L x L matrix is ever held.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from attnspec.reference.sinks import check
from attnspec.reference.tiles import Tiles, cut, tiles
from attnspec.spec.call import Gradients, Result
from attnspec.spec.errors import InputError

TILE = (64, 64)  # rows and keys


class Softmax(NamedTuple):
    """The online softmax over the keys that some rows have met so far.

    top: running maximum m of the scores, (..., rows, 1), -inf before a key is seen. total: running sum of exp(s - m),
    (..., rows, 1). mixed: running sum of exp(s - m) v, (..., rows, value_dim).
    """

    top: torch.Tensor
    total: torch.Tensor
    mixed: torch.Tensor


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    causal_alignment: str = "upper_left",
    scale: float | None = None,
    enable_gqa: bool = False,
    key_lengths: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    window_size: tuple[int, int] | None = None,
    alibi_slopes: torch.Tensor | None = None,
    alibi_form: str = "symmetric",
    alibi_alignment: str | None = None,
    softcap: float | None = None,
    tile: tuple[int, int] = TILE,
    accumulate: torch.dtype = torch.float64,
    weights: torch.dtype | None = None,
) -> Result:
    """Return output and lse of attention, computed tile by tile in the dtype `accumulate`.

    Inputs: as `attnspec.reference.attention.attention` takes them. key_lengths: (batch,) integers; keys at and beyond
    key_lengths[b] are not there: whatever that memory holds stays out, and the lower right corner of the causal
    triangle is at the last key that is there. window_size: (left, right), the keys around the diagonal that a row
    sees, -1 for no bound. softcap: the cap of the scaled scores, 0 and None for none. alibi_alignment: None is the
    causal_alignment. tile: rows and keys of a tile,
    each 1 or more. weights: the dtype to which each exp(s - m) is rounded once before it multiplies the value; None is
    `accumulate`. Returns output (batch, q_heads, q_len, value_dim) and lse (batch, q_heads, q_len) in `accumulate`; a
    row that sees no key has output 0 and lse -inf. Extra memory: a few tiles, for each batch element and head. Raises
    InputError where the arguments do not fit. Rules: `flash.tile-independent`, `flash.memory`, `attention.output`,
    `softmax.lse`, `mask.fully-masked-row`. Source: Dao et al. 2022, algorithm 1; Dao 2023, algorithm 1; Milakov and
    Gimelshein 2018, algorithm 3; Rabe and Staats 2021, sections 2 and 3.
    """
    call = tiles(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        causal_alignment=causal_alignment,
        scale=scale,
        enable_gqa=enable_gqa,
        key_lengths=key_lengths,
        window_size=window_size,
        alibi_slopes=alibi_slopes,
        alibi_form=alibi_form,
        alibi_alignment=alibi_alignment,
        softcap=softcap,
        accumulate=accumulate,
    )
    check_tile(tile)
    output = query.new_empty((*call.query.shape[:-1], value.shape[-1]), dtype=accumulate)
    lse = query.new_empty(call.query.shape[:-1], dtype=accumulate)  # (batch, kv_heads, group, q_len)
    sink = None if sinks is None else heads_of(sinks, call)
    for rows in cut(query.shape[2], tile[0]):
        state = start(output[..., rows, :], sink)
        for keys in cut(key.shape[2], tile[1]):
            state = step(state, call.scores(rows, keys), call.value_tile(keys), weights or accumulate)
        output[..., rows, :], lse[..., rows] = finish(state)
    return Result(output=output.flatten(1, 2), lse=lse.flatten(1, 2))


def start(output: torch.Tensor, sink: torch.Tensor | None = None) -> Softmax:
    """Return the online softmax before the first key, m = -inf, l = 0, O = 0, for rows that have this output.

    With a sink z, which broadcasts to (..., rows, 1): m = z, l = 1, as after a key of score z and value 0.
    """
    row = output.new_zeros((*output.shape[:-1], 1))
    top = torch.full_like(row, -torch.inf) if sink is None else row + sink
    return Softmax(top=top, total=(top > -torch.inf).to(row.dtype), mixed=torch.zeros_like(output))


def heads_of(sinks: torch.Tensor, call: Tiles) -> torch.Tensor:
    """Return the sinks as (kv_heads, group, 1, 1), in the tiles' dtype. Raises InputError. Rule: `sinks.shape`."""
    groups = call.query.shape[1:3]
    check(sinks, groups[0] * groups[1])
    return torch.unflatten(sinks.to(call.accumulate), 0, groups)[..., None, None]


def step(state: Softmax, scores: torch.Tensor, value: torch.Tensor, weights_dtype: torch.dtype) -> Softmax:
    """Return the online softmax after one more tile of keys.

    scores: (batch, kv_heads, group, rows, keys), -inf where hidden; value: (batch, kv_heads, keys, value_dim). With m
    the old maximum and m' the new one: l' = exp(m - m') l + sum_j exp(s_j - m'), O' = exp(m - m') O + sum_j exp(s_j -
    m') v_j. Source: Milakov and Gimelshein 2018, algorithm 3; Dao 2023, section 3.1.1.
    """
    top = torch.maximum(state.top, scores.amax(-1, keepdim=True))  # m'
    shift = torch.where(top == -torch.inf, 0.0, top)  # a row that has seen no key has no maximum
    weights = torch.exp(scores - shift)  # (batch, kv_heads, group, rows, keys)
    rescale = torch.exp(state.top - shift)  # exp(m - m')
    total = rescale * state.total + weights.sum(-1, keepdim=True)
    stored = weights.to(weights_dtype).to(value.dtype)
    mixed = rescale * state.mixed + torch.einsum("bhgqk,bhkd->bhgqd", stored, value)
    return Softmax(top, total, mixed)


def finish(state: Softmax) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output O / l (..., rows, value_dim) and lse m + log l (..., rows); 0 and -inf for a row without keys."""
    output = state.mixed / torch.where(state.total == 0, 1.0, state.total)
    return output, (state.top + torch.log(state.total)).squeeze(-1)


def flash_backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    lse: torch.Tensor,
    grad_output: torch.Tensor,
    *,
    grad_lse: torch.Tensor | None = None,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    causal_alignment: str = "upper_left",
    scale: float | None = None,
    enable_gqa: bool = False,
    key_lengths: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    window_size: tuple[int, int] | None = None,
    alibi_slopes: torch.Tensor | None = None,
    alibi_form: str = "symmetric",
    alibi_alignment: str | None = None,
    softcap: float | None = None,
    tile: tuple[int, int] = TILE,
    accumulate: torch.dtype = torch.float64,
) -> Gradients:
    """Return the gradients of a call, the weights recomputed tile by tile from the lse.

    query to attn_mask and the options: those of the forward call. output (batch, q_heads, q_len, value_dim) and lse
    (batch, q_heads, q_len): its result. grad_output, grad_lse: of their shapes. With P = exp(S - lse) and delta =
    rowsum(dO o O) - grad_lse:

        dV = P^T dO,  dP = dO V^T,  dbias = P o (dP - delta),  dS = dbias o (1 - tanh^2)
        dQ = scale dS K,  dK = scale dS^T Q,  dm = -sum dbias o distance

    each summed over the query heads of a group and over what was broadcast. Rows that see no key have lse -inf, hence
    P = 0 and no part in any gradient. Returns the gradients in `accumulate`. Extra memory: one number a row, and a few
    tiles. Raises InputError where the arguments do not fit. Rules: `flash.lse-recompute`, `flash.tile-independent`,
    `flash.memory`. Source: Dao et al. 2022, algorithm 4 and appendix B.2; Dao 2023, algorithm 2.
    """
    call = tiles(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        causal_alignment=causal_alignment,
        scale=scale,
        enable_gqa=enable_gqa,
        key_lengths=key_lengths,
        window_size=window_size,
        alibi_slopes=alibi_slopes,
        alibi_form=alibi_form,
        alibi_alignment=alibi_alignment,
        softcap=softcap,
        accumulate=accumulate,
    )
    check_tile(tile)
    check_result(call, output, lse, grad_output, grad_lse)
    groups = call.query.shape[1:3]
    delta = torch.unflatten(row_delta(output, grad_output, grad_lse, accumulate), 1, groups)
    lse, grad_output = torch.unflatten(lse, 1, groups), torch.unflatten(grad_output, 1, groups)
    grad_query = torch.zeros_like(call.query, dtype=accumulate)  # (batch, kv_heads, group, q_len, head_dim)
    grad_key = torch.zeros_like(key, dtype=accumulate)  # (kv_batch, kv_heads, k_len, head_dim)
    grad_value = torch.zeros_like(value, dtype=accumulate)
    grad_mask = None
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        grad_mask = torch.zeros_like(attn_mask, dtype=accumulate)
    grad_slopes = None if alibi_slopes is None else torch.zeros_like(alibi_slopes, dtype=accumulate)
    for keys in cut(key.shape[2], tile[1]):
        key_tile, value_tile = call.key_tile(keys), call.value_tile(keys)
        for rows in cut(query.shape[2], tile[0]):
            grad_row = grad_output[..., rows, :].to(accumulate)
            weights = recompute(call.scores(rows, keys), lse[..., rows].to(accumulate))
            grad_weights = torch.einsum("bhgqd,bhkd->bhgqk", grad_row, value_tile)
            grad_scores = weights * (grad_weights - delta[..., rows, None])
            grad_scaled = call.below_cap(grad_scores, rows, keys)
            grad_query[..., rows, :] += call.scale * torch.einsum("bhgqk,bhkd->bhgqd", grad_scaled, key_tile)
            add(
                grad_key[..., keys, :],
                call.scale * torch.einsum("bhgqk,bhgqd->bhkd", grad_scaled, call.query_tile(rows)),
            )
            add(grad_value[..., keys, :], torch.einsum("bhgqk,bhgqd->bhkd", weights, grad_row))
            if grad_mask is not None:
                add(part(grad_mask, rows, keys), grad_scores.flatten(1, 2))
            if grad_slopes is not None:
                add(grad_slopes, -(grad_scores * call.distance(rows, keys)).sum((3, 4)).flatten(1, 2))
    grad_sinks = None
    if sinks is not None:  # a key of score z and value 0: dP = 0, dS = -P delta
        weights = recompute(heads_of(sinks, call), lse.to(accumulate))  # (batch, kv_heads, group, q_len, 1)
        grad_sinks = -(weights.squeeze(-1) * delta).sum((0, 3)).flatten()
    return Gradients(grad_query.flatten(1, 2), grad_key, grad_value, grad_mask, grad_sinks, grad_slopes)


def row_delta(
    output: torch.Tensor, grad_output: torch.Tensor, grad_lse: torch.Tensor | None, accumulate: torch.dtype
) -> torch.Tensor:
    """Return delta_i = sum_c dO_ic O_ic - grad_lse_i, (batch, q_heads, q_len).

    It is sum_j P_ij dP_ij without a pass over the keys. Source: Dao et al. 2022, appendix B.2.
    """
    delta = torch.einsum("bhqd,bhqd->bhq", grad_output.to(accumulate), output.to(accumulate))
    return delta if grad_lse is None else delta - grad_lse.to(accumulate)


def recompute(scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """Return P = exp(S - lse), the shape of the scores; 0 in hidden slots and in rows without keys.

    scores: (..., rows, keys), -inf where hidden. lse: (..., rows). Rule: `flash.lse-recompute`.
    """
    return torch.exp(scores - torch.where(lse == -torch.inf, 0.0, lse)[..., None])


def add(total: torch.Tensor, tile: torch.Tensor) -> None:
    """Add a tile to a part of a gradient, summed over the dimensions in which the part has size 1 or is missing."""
    total += tile.sum_to_size(total.shape)


def part(mask: torch.Tensor, rows: slice, keys: slice) -> torch.Tensor:
    """Return the part of a mask's gradient that a tile adds to; a dimension that was broadcast is taken whole."""
    if mask.ndim > 0 and mask.shape[-1] != 1:
        mask = mask[..., keys]
    if mask.ndim > 1 and mask.shape[-2] != 1:
        mask = mask[..., rows, :]
    return mask


def check_tile(tile: tuple[int, int]) -> None:
    """Raise InputError for a tile without rows or keys."""
    if len(tile) != 2 or min(tile) < 1:
        raise InputError(f"tile is {tile}: use (rows, keys), each 1 or more")


def check_result(
    call: Tiles, output: torch.Tensor, lse: torch.Tensor, grad_output: torch.Tensor, grad_lse: torch.Tensor | None
) -> None:
    """Raise InputError where a result or its gradients have not the shape that the call gives them."""
    rows = (call.query.shape[0], call.query.shape[1] * call.query.shape[2], call.query.shape[3])
    value_dim = call.value.shape[-1]
    for name, tensor, shape in (
        ("output", output, (*rows, value_dim)),
        ("grad_output", grad_output, (*rows, value_dim)),
        ("lse", lse, rows),
        ("grad_lse", lse if grad_lse is None else grad_lse, rows),
    ):
        if tensor.shape != shape:
            raise InputError(f"{name} is {tuple(tensor.shape)}: use {shape}, as the forward call gives it")
