"""A launch description: how attention is asked of a kernel in a CUDA file, written in TOML beside it.

`my_kernel.toml` has a table for each kernel of `my_kernel.cu`. Schema: `cuda-launch`; words: docs/cuda-emulator.md.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnspec.implementations.cuda_emulator.expressions import Expression, parse
from attnspec.spec.capabilities import Capabilities, covers
from attnspec.spec.errors import InputError
from attnspec.spec.schemas import check

TENSORS = (
    "query",
    "key",
    "value",
    "output",
    "lse",
    "attn_mask.bool",
    "attn_mask.float",
    "key_lengths",
    "sinks",
    "alibi_slopes",
)
SIZES = frozenset({"batch", "q_heads", "kv_heads", "q_len", "k_len", "head_dim", "value_dim", "itemsize"})
SCALARS = SIZES | {"is_causal", "scale", "softcap", "window_left", "window_right"}
TOLD_BY = {  # a feature, and what an argument must name for the kernel to know of it
    "attn_mask.bool": ("attn_mask.bool",),
    "attn_mask.float": ("attn_mask.float",),
    "is_causal": ("is_causal",),
    "scale": ("scale",),
    "enable_gqa": ("kv_heads",),
    "return_lse": ("lse",),
    "value_dim": ("value_dim",),
    "key_lengths": ("key_lengths",),
    "sinks": ("sinks",),
    "window_size": ("window_left", "window_right"),
    "alibi_slopes": ("alibi_slopes",),
    "softcap": ("softcap",),
}
NEVER = ("backward", "grad_alibi_slopes", "dropout_p")  # what no description can ask of a kernel
ALWAYS = ("kv_broadcast",)  # what the tensors are laid out for before a launch
RANKS = tuple(f"attn_mask.rank{rank}" for rank in (1, 2, 3, 4))


@dataclass(frozen=True)
class Description:
    """How a kernel is launched. kernels: its name in the file, by dtype. arguments: a tensor's name, or an expression;
    both in the order of the kernel's parameters."""

    where: str
    kernels: dict[str, str]
    grid: tuple[Expression, ...]
    block: tuple[Expression, ...]
    shared: Expression
    arguments: tuple[str | Expression, ...]
    capabilities: Capabilities


def describe(source: Path, entry: str) -> Description:
    """Return the launch description of a kernel.

    source: the CUDA file; the description is the table `entry` of the file of the same name in .toml. Raises
    InputError, one line, where there is none, where it breaks its schema, has an expression outside of the grammar, or
    declares what no argument tells the kernel of.
    """
    path = source.with_suffix(".toml")
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{source} needs a launch description, {path.name} beside it, with a table [{entry}]"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None
    if entry not in tables:
        known = ", ".join(f"[{name}]" for name in tables) or "none"
        raise InputError(f"{path}: has no table [{entry}]; it has {known}")
    check(tables[entry], "cuda-launch", f"{path}: [{entry}]")
    return _described(f"{path}: [{entry}]", entry, tables[entry])


def _described(where: str, entry: str, table: dict[str, Any]) -> Description:
    arguments: list[str | Expression] = []
    for given in table["arguments"]:
        arguments.append(given if given in TENSORS else _parsed(f"{where}: arguments", given, SCALARS, TENSORS))
    declared = table.get("capabilities", {})
    told = {name for given in arguments for name in ([given] if isinstance(given, str) else given.names)}
    features = tuple(declared["features"]) if "features" in declared else _features(told)
    for feature in features:
        _need_told(where, feature, told)
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in declared.items()
    }
    capabilities = Capabilities(**{"dtypes": ("float32",)} | fields | {"features": features, "cost": "emulated"})
    kernel = table.get("kernel", entry)
    kernels = kernel if isinstance(kernel, dict) else dict.fromkeys(capabilities.dtypes, kernel)
    missing = [dtype for dtype in capabilities.dtypes if dtype not in kernels]
    if missing:
        raise InputError(f"{where}: kernel: names none for {missing[0]}, which the capabilities declare")
    return Description(
        where,
        kernels,
        tuple(_parsed(f"{where}: grid", text, SIZES) for text in table["grid"]),
        tuple(_parsed(f"{where}: block", text, SIZES) for text in table["block"]),
        _parsed(f"{where}: shared", table.get("shared", 0), SIZES),
        tuple(arguments),
        capabilities,
    )


def _parsed(where: str, text: str | int, known: frozenset[str], tensors: tuple[str, ...] = ()) -> Expression:
    try:
        return parse(text, known, tensors)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _features(told: set[str]) -> tuple[str, ...]:
    """Return the features that the arguments show."""
    shown = tuple(feature for feature, names in TOLD_BY.items() if told.issuperset(names))
    return (*shown, *ALWAYS, *(RANKS if any(name.startswith("attn_mask") for name in shown) else ()))


def _need_told(where: str, feature: str, told: set[str]) -> None:
    if any(covers(feature, never) for never in NEVER):
        raise InputError(f"{where}: capabilities: features: {feature} cannot be asked of one kernel")
    for known, names in TOLD_BY.items():
        if covers(feature, known) and not told.issuperset(names):
            lacking = next(name for name in names if name not in told)
            raise InputError(f"{where}: features has {feature!r}, and no argument tells the kernel {lacking!r}")
