"""A user's own CUDA file as a backend: its kernel, run on the CPU as its launch description says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch

from attnspec.implementations.cuda_emulator.build import build, check_file
from attnspec.implementations.cuda_emulator.description import Description, describe
from attnspec.implementations.cuda_emulator.expressions import Number
from attnspec.implementations.cuda_emulator.launch import MOST_BLOCKS, Library
from attnspec.implementations.gpu_limits import MOST_SHARED, MOST_THREADS
from attnspec.implementations.torch_eager import check_call, check_sinks, check_slopes
from attnspec.spec.errors import InputError

HARDWARE = "CUDA emulated on cpu"
ALIGNMENT = 16  # bytes; what cudaMalloc gives at least


class CudaFile:
    """A kernel of a CUDA file. name: `file.cu:entry`. hardware: that no GPU ran it."""

    def __init__(self, source: Path, entry: str, sanitize: str | None = None) -> None:
        """Compile the file. sanitize: None, `thread` or `address`. Raises InputError, one line: for the file, for its
        launch description, and where the two do not fit."""
        self.source, self.entry = source, entry
        self.name = f"{source.name}:{entry}"
        self.hardware = HARDWARE if sanitize is None else f"{HARDWARE}, {sanitize} sanitizer"
        check_file(source)
        self.description = describe(source, entry)
        self.capabilities = self.description.capabilities
        check_numbers(self.description)
        self.library = build(source, sanitize=sanitize)
        for kernel in self.description.kernels.values():
            check_fit(self.description, self.library, kernel)

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        attn_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        key_lengths: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        window_size: tuple[int, int] | None = None,
        softcap: float | None = None,
        return_lse: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return what the kernel wrote to output, and to lse where asked for; NaN where it wrote nothing.

        Arguments: `attnspec.spec.call.Call`. The kernel is given dense tensors, aligned to 16 bytes. Raises InputError
        where the tensors do not fit, KernelFault where the kernel does what it must not. Rule: `contract.refusal`.
        """
        check_call(query, key, value, attn_mask, enable_gqa, key_lengths, window_size, softcap)
        check_sinks(sinks, query.shape[1])
        if alibi_slopes is not None:
            check_slopes(alibi_slopes, query.shape[0], query.shape[1])
        batch, q_heads, q_len, _ = query.shape
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        output = torch.full((batch, q_heads, q_len, value.shape[3]), torch.nan, dtype=query.dtype)
        lse = torch.full((batch, q_heads, q_len), torch.nan, dtype=wide)
        bias = None if attn_mask is None else attn_mask.expand(batch, q_heads, q_len, key.shape[2])
        floats = bias is not None and bias.dtype != torch.bool
        tensors = {
            "query": query,
            "key": key.expand(batch, -1, -1, -1),
            "value": value.expand(batch, -1, -1, -1),
            "output": output,
            "lse": lse,
            "attn_mask.bool": None if floats else bias,
            "attn_mask.float": bias if floats else None,
            "key_lengths": None if key_lengths is None else key_lengths.int(),
            "sinks": None if sinks is None else sinks.float(),
            "alibi_slopes": None if alibi_slopes is None else alibi_slopes.float().expand(batch, q_heads),
        }
        left, right = window_size or (-1, -1)
        options = {
            "is_causal": int(is_causal),
            "scale": 1 / math.sqrt(query.shape[3]) if scale is None else scale,
            "softcap": softcap or 0.0,
            "window_left": left,
            "window_right": right,
        }
        dtype = str(query.dtype).removeprefix("torch.")
        self._launch(dtype, tensors, {**sizes_of(query, key, value), **options})
        return (output, lse) if return_lse else output

    def _launch(self, dtype: str, tensors: Mapping[str, torch.Tensor | None], names: Mapping[str, Number]) -> None:
        """Launch the kernel of a dtype. tensors, names: what the description speaks of."""
        described = self.description
        if dtype not in described.kernels:
            raise InputError(f"{self.name}: {dtype} is not declared; use {', '.join(described.kernels)}")
        grid, block = ([e.whole(names) for e in extent] for extent in (described.grid, described.block))
        if 0 in (names["batch"], names["q_heads"], names["q_len"]):  # there is no row
            return
        if not all(1 <= x <= MOST_BLOCKS for x in grid):
            raise InputError(f"{described.where}: grid is {grid}, which runs nothing: use 1 or more blocks, by ceil")
        arguments = [
            dense(tensors[given]) if isinstance(given, str) else given.value(names) for given in described.arguments
        ]
        self.library.launch(described.kernels[dtype], grid, block, described.shared.whole(names), arguments)


def check_numbers(described: Description) -> None:
    """Raise InputError, one line, where grid, block or shared memory of a small plain call are no numbers that a launch
    can have."""
    low = described.capabilities.head_dims[0]
    sizes = {"batch": 1, "q_heads": 1, "kv_heads": 1, "q_len": 5, "k_len": 5, "head_dim": low, "value_dim": low}
    names: dict[str, Number] = {**sizes, "itemsize": getattr(torch, described.capabilities.dtypes[0]).itemsize}
    numbers: dict[str, list[int]] = {}
    for key, given in (("grid", described.grid), ("block", described.block), ("shared", (described.shared,))):
        try:
            numbers[key] = [expression.whole(names) for expression in given]
        except (InputError, ArithmeticError, ValueError) as error:
            raise InputError(f"{described.where}: {key}: {error}") from None
    if not all(1 <= x <= MOST_BLOCKS for x in numbers["grid"]):
        raise InputError(f"{described.where}: grid is {numbers['grid']} for {sizes}: use 1 to {MOST_BLOCKS}")
    if not all(x >= 1 for x in numbers["block"]) or math.prod(numbers["block"]) > MOST_THREADS:
        raise InputError(f"{described.where}: block is {numbers['block']}: use 1 to {MOST_THREADS} threads in all")
    if not 0 <= numbers["shared"][0] <= MOST_SHARED:
        raise InputError(f"{described.where}: shared is {numbers['shared'][0]} bytes: use 0 to {MOST_SHARED}")


def sizes_of(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> dict[str, Number]:
    """Return the sizes of a call, by the names that a description may use. Shapes as in
    `attnspec.spec.call.Call`."""
    return {
        "batch": query.shape[0],
        "q_heads": query.shape[1],
        "kv_heads": key.shape[1],
        "q_len": query.shape[2],
        "k_len": key.shape[2],
        "head_dim": query.shape[3],
        "value_dim": value.shape[3],
        "itemsize": query.element_size(),
    }


def dense(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return a tensor without gaps that begins at a multiple of 16 bytes: itself, where it is one."""
    if tensor is None:
        return None
    tensor = tensor.detach().contiguous()
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def check_fit(described: Description, library: Library, kernel: str) -> None:
    """Raise InputError, one line, where a description's arguments are not those of the kernel."""
    where = f"{described.where}: arguments"
    if kernel not in library.entries:
        known = ", ".join(library.entries)
        raise InputError(f'{described.where}: no kernel {kernel!r}: the file has {known} (as extern "C" __global__)')
    wanted = library.parameters(kernel)
    if len(wanted) != len(described.arguments):
        told = ", ".join(map(str, wanted))
        raise InputError(f"{where}: names {len(described.arguments)}, and kernel {kernel} takes {len(wanted)} ({told})")
    for i, (given, parameter) in enumerate(zip(described.arguments, wanted, strict=True)):
        shown = given if isinstance(given, str) else given.text
        if isinstance(given, str) != (parameter.kind == "p") or parameter.kind == "s":
            raise InputError(f"{where}: {shown!r} stands where kernel {kernel} has parameter {i + 1}, {parameter}")
