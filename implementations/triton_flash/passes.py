"""The forward and the backward pass over sequences, dense, packed or paged, as launches of the kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton

from attnspec.implementations.triton_flash import backward, launch
from attnspec.implementations.triton_flash.forward import forward
from attnspec.implementations.triton_flash.merge import merge


@dataclass(frozen=True)
class Sequences:
    """Attention over a batch of sequences, as the kernels are told of it.

    query: (batch, q_heads, q_len, head_dim); key, value: (batch, kv_heads, k_len, dim), a batch of stride 0 where it is
    shared. Packed sequences lie one after the other along the length, with stride 0 for the batch, and cu_seqlens_q,
    cu_seqlens_k (batch + 1,) say where each begins. Paged keys and values are (num_blocks, kv_heads, page_size, dim)
    with block_table (batch, max_blocks). attn_mask: (batch, q_heads, q_len, k_len), bool or floating, expanded without
    a copy; alibi_slopes: (batch, q_heads); sinks: (q_heads,); key_lengths: (batch,). q_len, k_len: of the longest
    sequence. left, right: how many keys around the diagonal a row sees, None for all. tile: rows and keys, None for
    what is best; split_keys: how many keys each split has, whole tiles, None for one split. Raises InputError for a
    tile or a split that cannot be.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    q_len: int
    k_len: int
    attn_mask: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    key_lengths: torch.Tensor | None = None
    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_k: torch.Tensor | None = None
    block_table: torch.Tensor | None = None
    left: int | None = None
    right: int | None = None
    lower_right: bool = False
    scale: float | None = None
    softcap: float | None = None
    tile: tuple[int, int] | None = None
    split_keys: int | None = None

    def __post_init__(self) -> None:
        launch.check_tile(self.tile, self.split_keys)

    @property
    def kv_heads(self) -> int:
        """How many key heads there are."""
        return self.key.shape[1]

    @property
    def group(self) -> int:
        """How many query heads read one key head."""
        return self.query.shape[1] // self.kv_heads

    @property
    def splits(self) -> int:
        """How many splits the keys fall into."""
        return 1 if self.split_keys is None else max(triton.cdiv(self.k_len, self.split_keys), 1)

    def arguments(self) -> dict[str, Any]:
        """Return what every kernel is told of the call."""
        mask, slopes = self.attn_mask, self.alibi_slopes
        if mask is not None and mask.dtype == torch.bool:
            mask = mask.view(torch.uint8)
        found: dict[str, Any] = {name: getattr(self, name) for name in ("query", "key", "value")}
        found |= {f"{name}_strides": getattr(self, name).stride() for name in ("query", "key", "value")}
        found |= {name: integers(getattr(self, name)) for name in ("key_lengths", "cu_seqlens_q", "cu_seqlens_k")}
        found |= {name: getattr(self, name) for name in ("q_len", "k_len", "kv_heads", "left", "right")}
        found |= {"attn_mask": mask, "mask_strides": None if mask is None else mask.stride()}
        found |= {"alibi_slopes": slopes, "slope_strides": None if slopes is None else slopes.stride()}
        head_dim, value_dim = self.query.shape[-1], self.value.shape[-1]
        found["scale"] = float(1 / math.sqrt(head_dim) if self.scale is None else self.scale)
        found |= {"softcap": float(self.softcap) if self.softcap else None, "LOWER_RIGHT": self.lower_right}
        found |= {"GROUP": self.group, "HEAD_DIM": head_dim, "VALUE_DIM": value_dim}
        found |= {"HEAD_WIDTH": launch.width_of(head_dim), "VALUE_WIDTH": launch.width_of(value_dim)}
        widest = max(found["HEAD_WIDTH"], found["VALUE_WIDTH"])
        tile = self.tile or launch.tile_of(self.q_len * self.group, self.k_len, widest, self.split_keys)
        return found if tile is None else found | {"ROWS": tile[0], "KEYS": tile[1]}

    def row_programs(self, meta: dict[str, Any]) -> tuple[int, int]:
        """Return how many programs there are, one for each tile of rows of each key head of each split."""
        tiles = triton.cdiv(self.q_len * self.group, meta["ROWS"])
        return tiles * self.query.shape[0] * self.kv_heads, self.splits

    def key_programs(self, meta: dict[str, Any]) -> tuple[int]:
        """Return how many programs there are, one for each tile of keys of each key head."""
        return (triton.cdiv(self.k_len, meta["KEYS"]) * self.query.shape[0] * self.kv_heads,)


def integers(x: torch.Tensor | None) -> torch.Tensor | None:
    """Return a tensor of integers as the kernels read it, int32, one after the other."""
    return None if x is None else x.to(torch.int32).contiguous()


def heads_first(x: torch.Tensor, batch: int) -> torch.Tensor:
    """Return packed (tokens, heads, ...) as (batch, heads, tokens, ...), each batch element the whole pack."""
    return x.transpose(0, 1).expand(batch, *x.transpose(0, 1).shape)


def forward_pass(call: Sequences) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output and lse: (batch, q_heads, q_len, value_dim) and (batch, q_heads, q_len); for packed queries
    (tokens, q_heads, value_dim) and (q_heads, tokens), 0 and -inf for tokens that no sequence has.

    The output has the query's dtype, the lse is float32. With splits, each part is written in float32 and merged.
    """
    query, value_dim, splits = call.query, call.value.shape[-1], call.splits
    batch, heads, tokens, _ = query.shape
    packed = call.cu_seqlens_q is not None
    rows = (tokens, heads) if packed else (batch, heads, tokens)
    part_dtype = query.dtype if splits == 1 else torch.float32
    outputs = query.new_empty((splits, *rows, value_dim), dtype=part_dtype)
    lses = query.new_empty((splits, *rows), dtype=torch.float32)
    if packed:
        outputs.zero_()
        lses.fill_(-torch.inf)
    first = (heads_first(outputs[0], batch), heads_first(lses[0], batch)) if packed else (outputs[0], lses[0])
    table = call.block_table
    arguments = call.arguments() | {
        "output": outputs,
        "lse": lses,
        "output_strides": (*first[0].stride(), outputs.stride(0)),
        "lse_strides": (*first[1].stride(), lses.stride(0)),
        "sinks": call.sinks,
        "block_table": integers(table),
        "table_stride": None if table is None else table.shape[1],
        "split_keys": call.split_keys if splits > 1 else None,
        "PAGE_SIZE": 1 if table is None else call.key.shape[2],
    }
    launch.run(forward, call.row_programs, arguments)
    output, lse = (outputs[0], lses[0]) if splits == 1 else merge(outputs, lses, query.dtype)
    return output, lse.transpose(0, 1) if packed else lse


def backward_pass(
    call: Sequences,
    output: torch.Tensor,
    lse: torch.Tensor,
    grad_output: torch.Tensor,
    grad_lse: torch.Tensor | None,
    needed: tuple[bool, bool, bool],
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of query, key and value, of an additive mask and of sinks, in the shapes that the kernels
    see: (batch, heads, length, dim), for packed tensors (tokens, heads, dim). What is not needed is None.

    output, lse: as `forward_pass` gave them. needed: whether query, or key and value, or the mask ask for a gradient.
    The gradient of the mask is float32 of its expanded shape.
    """
    batch, packed = call.query.shape[0], call.cu_seqlens_q is not None
    lse = lse.contiguous()
    delta = torch.empty_like(lse)
    grad_mask = None
    rows = {"output": output, "grad_output": grad_output}
    numbers = {"lse": lse, "delta": delta} | ({} if grad_lse is None else {"grad_lse": grad_lse})
    if packed:
        rows = {name: heads_first(x, batch) for name, x in rows.items()}
        numbers = {name: x.expand(batch, *x.shape) for name, x in numbers.items()}
    strides: dict[str, Any] = {f"{name}_strides": x.stride() for name, x in (rows | numbers).items()}
    told = call.arguments()
    of_delta: dict[str, Any] = {"grad_lse": None, "grad_lse_strides": None, **rows, **numbers, **strides}
    for name in ("lse", "lse_strides"):
        del of_delta[name]
    of_delta |= {"heads": call.query.shape[1], "q_len": call.query.shape[2], "ROWS": 64}
    of_delta |= {name: told[name] for name in ("VALUE_DIM", "VALUE_WIDTH")}
    programs = (triton.cdiv(call.query.shape[2], 64) * (1 if packed else batch) * call.query.shape[1],)
    launch.run(backward.row_delta, lambda _: programs, of_delta)

    given: dict[str, Any] = {"grad_output": rows["grad_output"], "lse": numbers["lse"], "delta": numbers["delta"]}
    given |= {name: strides[name] for name in ("grad_output_strides", "lse_strides")}
    grad_query = grad_key = grad_value = None
    if needed[0] or needed[2]:
        grad_query, seen = empty_like(call.query, packed)
        if needed[2]:
            assert call.attn_mask is not None
            grad_mask = torch.zeros(call.attn_mask.shape, dtype=torch.float32, device=lse.device)
        here = {"grad_query": seen, "grad_query_strides": seen.stride(), "grad_mask": grad_mask}
        here["grad_mask_strides"] = None if grad_mask is None else grad_mask.stride()
        launch.run(backward.query_gradient, lambda meta: call.row_programs(meta)[:1], told | given | here)
    if needed[1]:
        grad_key, seen_key = empty_like(call.key, call.cu_seqlens_k is not None)
        grad_value, seen_value = empty_like(call.value, call.cu_seqlens_k is not None)
        here = {"grad_key": seen_key, "grad_key_strides": seen_key.stride()}
        here |= {"grad_value": seen_value, "grad_value_strides": seen_value.stride()}
        launch.run(backward.key_gradients, call.key_programs, told | given | here)
    grad_sinks = None if call.sinks is None else sink_gradient(call.sinks, lse, delta)
    return grad_query, grad_key, grad_value, grad_mask, grad_sinks


def empty_like(x: torch.Tensor, packed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a gradient of 0 for a tensor, and the same as the kernels see it; in float32 where a batch shares it."""
    if packed:
        whole = torch.zeros(x.shape[2], x.shape[1], x.shape[3], dtype=x.dtype, device=x.device)
        return whole, heads_first(whole, x.shape[0])
    shared = x.shape[0] > 1 and x.stride(0) == 0
    whole = torch.zeros(x.shape, dtype=torch.float32 if shared else x.dtype, device=x.device)
    return whole, whole


def sink_gradient(sinks: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return the gradient of each sink, that of a score whose value is 0, so dP = 0: -sum exp(z - lse) delta."""
    weights = torch.exp(sinks.float()[:, None] - lse).masked_fill(lse == -torch.inf, 0.0)  # (batch, q_heads, q_len)
    return -(weights * delta).sum((0, 2))
