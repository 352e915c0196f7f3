"""The key and value cache of decoding, and attention over it (chapter "KV cache and key lengths")."""

from __future__ import annotations

import torch

from attnspec.reference.attention import attention
from attnspec.reference.lengths import check
from attnspec.spec.call import Result
from attnspec.spec.errors import InputError


class KVCache:
    """Keys and values of one layer, stored for `capacity` tokens of each sequence; the first `lengths[b]` are in use.

    key: (batch, kv_heads, capacity, head_dim); value: (batch, kv_heads, capacity, value_dim), of one floating dtype;
    lengths: (batch,) int64. Unused slots hold NaN, so that a read of one shows. kv_heads is that of the keys: fewer
    than the query heads with grouped-query, 1 with multi-query attention. value_dim: None is head_dim. Raises
    InputError for sizes or a dtype that cannot be. Rules: `kv-cache.bytes`, `kv-cache.capacity`. Source: Shazeer 2019,
    section 2.4; flash-attention, `flash_attn_with_kvcache`.
    """

    def __init__(
        self,
        batch: int,
        kv_heads: int,
        capacity: int,
        head_dim: int,
        value_dim: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        value_dim = head_dim if value_dim is None else value_dim
        if batch < 0 or capacity < 0 or min(kv_heads, head_dim, value_dim) < 1:
            raise InputError(
                f"cache of batch {batch}, kv_heads {kv_heads}, capacity {capacity}, head_dim {head_dim}, value_dim "
                f"{value_dim}: use 0 or more for batch and capacity, 1 or more for the others"
            )
        if not dtype.is_floating_point:
            raise InputError(f"cache is {dtype}: use a floating dtype")
        self.key = torch.full((batch, kv_heads, capacity, head_dim), torch.nan, dtype=dtype)
        self.value = torch.full((batch, kv_heads, capacity, value_dim), torch.nan, dtype=dtype)
        self.lengths = torch.zeros(batch, dtype=torch.int64)

    @property
    def capacity(self) -> int:
        """Number of tokens that each sequence can hold."""
        return self.key.shape[2]

    @property
    def bytes(self) -> int:
        """Bytes of the storage, batch * kv_heads * capacity * (head_dim + value_dim) * bytes of an element.

        For value_dim = head_dim that is the factor 2 of the papers. Rule: `kv-cache.bytes`. Source: Pope et al. 2022,
        section 3.3; Ainslie et al. 2023, section 2.2.
        """
        batch, kv_heads, capacity, head_dim = self.key.shape
        value_dim = self.value.shape[3]
        return batch * kv_heads * capacity * (head_dim + value_dim) * self.key.element_size()

    def append(self, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor | None = None) -> None:
        """Store new tokens behind those of each sequence: token t of sequence b goes to slot lengths[b] + t.

        key: (batch, kv_heads, new, head_dim); value: (batch, kv_heads, new, value_dim), of the cache's dtype. lengths:
        (batch,), how many of the `new` tokens each sequence has, from the first on; None is all of them. What lies
        beyond is never read. Appending to the empty cache is the prefill. Raises InputError for tensors that do not
        fit the cache and for more tokens than its capacity holds; then nothing is stored. Rules: `kv-cache.order`,
        `kv-cache.capacity`. Source: flash-attention, `flash_attn_with_kvcache`, arguments `k` and `v`.
        """
        self.check_new(key, value)
        batch, new = key.shape[0], key.shape[2]
        lengths = torch.full((batch,), new) if lengths is None else lengths
        check(lengths, batch, new, "lengths")
        after = self.lengths + lengths  # (batch,)
        for b, length in enumerate(after.tolist()):
            if length > self.capacity:
                raise InputError(f"sequence {b} would have {length} tokens: the capacity is {self.capacity}")
        for b in range(batch):
            slots = slice(int(self.lengths[b]), int(after[b]))
            self.key[b, :, slots] = key[b, :, : lengths[b]]
            self.value[b, :, slots] = value[b, :, : lengths[b]]
        self.lengths = after

    def check_new(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """Raise InputError where the key and value of new tokens do not fit the cache. Rule: `notation.shapes`."""
        for name, tensor, stored in (("key", key, self.key), ("value", value, self.value)):
            batch, kv_heads, _, dim = stored.shape
            if tensor.ndim != 4 or tensor.shape != (batch, kv_heads, tensor.shape[2], dim):
                raise InputError(f"{name} has shape {tuple(tensor.shape)}: use ({batch}, {kv_heads}, length, {dim})")
            if tensor.dtype != stored.dtype:
                raise InputError(f"{name} is {tensor.dtype}: use the cache's dtype, {stored.dtype}")
        if key.shape[2] != value.shape[2]:
            raise InputError(f"key has {key.shape[2]} new tokens and value {value.shape[2]}: use the same number")


def attend(
    query: torch.Tensor,
    cache: KVCache,
    *,
    query_lengths: torch.Tensor | None = None,
    is_causal: bool = True,
    scale: float | None = None,
) -> Result:
    """Return attention of each sequence's last queries over its cached keys, in float64; weights are None.

    query: (batch, q_heads, q_len, head_dim), of the cache's dtype. query_lengths: (batch,), how many rows each
    sequence has, from the first on; None is q_len. Each sequence is attended alone, over its first `cache.lengths[b]`
    keys, with the causal diagonal at the lower right: its last query sees its last key. Returns output (batch,
    q_heads, q_len, value_dim) and lse (batch, q_heads, q_len); rows beyond query_lengths have output 0 and lse -inf.
    Raises InputError where the query does not fit the cache. Rules: `key-lengths.visible`, `key-lengths.absent`,
    `key-lengths.causal`. Source: flash-attention, `flash_attn_with_kvcache`.
    """
    check_query(query, cache)
    batch, q_heads, q_len, _ = query.shape
    query_lengths = torch.full((batch,), q_len) if query_lengths is None else query_lengths
    check(query_lengths, batch, q_len, "query_lengths")
    output = torch.zeros(batch, q_heads, q_len, cache.value.shape[3], dtype=torch.float64)
    lse = torch.full((batch, q_heads, q_len), -torch.inf, dtype=torch.float64)
    for b in range(batch):
        result = attention(
            query[b : b + 1, :, : query_lengths[b]],
            cache.key[b : b + 1, :, : cache.lengths[b]],
            cache.value[b : b + 1, :, : cache.lengths[b]],
            is_causal=is_causal,
            causal_alignment="lower_right",
            scale=scale,
            enable_gqa=True,
        )
        assert result.lse is not None  # the reference always gives it
        output[b, :, : query_lengths[b]] = result.output[0]  # (q_heads, query_lengths[b], value_dim)
        lse[b, :, : query_lengths[b]] = result.lse[0]  # (q_heads, query_lengths[b])
    return Result(output=output, lse=lse)


def decode(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cache: KVCache,
    *,
    lengths: torch.Tensor | None = None,
    is_causal: bool = True,
    scale: float | None = None,
) -> Result:
    """Append new tokens to the cache, then return attention of their queries over all that it holds.

    query: (batch, q_heads, new, head_dim); key: (batch, kv_heads, new, head_dim); value: (batch, kv_heads, new,
    value_dim). lengths: (batch,), how many of the `new` tokens each sequence has. Returns what `attend` returns.
    Raises InputError as `KVCache.append` does; a call that is refused leaves the cache as it was. Rules:
    `kv-cache.append`, `kv-cache.chunks`. Source: flash-attention, `flash_attn_with_kvcache`.
    """
    check_query(query, cache)
    cache.check_new(key, value)
    if query.shape[2] != key.shape[2]:
        raise InputError(f"query has {query.shape[2]} rows and key {key.shape[2]} new tokens: use the same number")
    cache.append(key, value, lengths)
    return attend(query, cache, query_lengths=lengths, is_causal=is_causal, scale=scale)


def check_query(query: torch.Tensor, cache: KVCache) -> None:
    """Raise InputError where the query does not fit the cache. Rules: `notation.shapes`, `grouped.heads-divide`."""
    batch, kv_heads, _, head_dim = cache.key.shape
    if query.ndim != 4 or query.shape[0] != batch or query.shape[3] != head_dim:
        raise InputError(f"query has shape {tuple(query.shape)}: use ({batch}, heads, length, {head_dim})")
    if query.shape[1] % kv_heads:
        raise InputError(f"query has {query.shape[1]} heads and the cache {kv_heads}: use a multiple")
    if query.dtype != cache.key.dtype:
        raise InputError(f"query is {query.dtype}: use the cache's dtype, {cache.key.dtype}")
