"""What a bare callable claims: its parameters' names are its declaration (rule `profile.core`)."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch

from attnspec.spec.call import Call
from attnspec.spec.capabilities import FEATURES, Capabilities
from attnspec.spec.errors import InputError

TENSORS = ("query", "key", "value")
SHORT = {"q": "query", "k": "key", "v": "value"}
OPTIONS = (
    *("attn_mask", "is_causal", "scale", "enable_gqa", "key_lengths", "window_size", "softcap", "sinks"),
    *("alibi_slopes", "return_lse", "dropout_p"),
)
ASKED_BY_NAME = (  # not of `**kwargs`: inference code does without
    *("return_lse", "key_lengths", "window_size", "softcap", "sinks", "alibi_slopes", "dropout_p"),
)
MEANT = {"causal": "is_causal", "mask": "attn_mask", "attention_mask": "attn_mask", "bias": "attn_mask"} | {
    "softmax_scale": "scale",
    "dropout": "dropout_p",
    "attn_dropout": "dropout_p",
    "sm_scale": "scale",
    "return_softmax_lse": "return_lse",
    "cache_seqlens": "key_lengths",
    "seqlen_k": "key_lengths",
    "sink": "sinks",
    "learnable_sink": "sinks",
    "s_aux": "sinks",
    "alibi": "alibi_slopes",
    "slopes": "alibi_slopes",
    "window": "window_size",
    "soft_cap": "softcap",
    "logits_soft_cap": "softcap",
    "logit_cap": "softcap",
    "sliding_window": "window_size",
    "local_window_size": "window_size",
}
TRIED = (
    "value_dim",
    "kv_broadcast",
    "enable_gqa",
    "empty",
    "backward",
)  # found out by trying: raising is an honest "no"
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Claims:
    """What was read off a callable. run: takes query, key, value by position and options by name."""

    run: Callable[..., Any]
    capabilities: Capabilities
    flagless_gqa: bool
    notes: tuple[str, ...] = ()


def claims_of(
    function: Callable[..., Any],
    target: str,
    accuracy: str = "fused",
    causal_alignment: str = "upper_left",
    alibi_alignment: str | None = None,
) -> Claims:
    """Return the claims of a bare callable. accuracy to alibi_alignment: what the user declares of it.

    Its first three positional parameters, or the ones called query, key and value (q, k, v), take the tensors. The
    names attn_mask, is_causal, scale, enable_gqa, key_lengths, window_size, softcap, return_lse and dropout_p claim
    these options; `**kwargs` claims the first four. Raises InputError where the tensors have no place or another
    parameter has no default.
    """
    parameters = list(signature_of(function, target).parameters.values())
    names = [p.name for p in parameters]
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    starred = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    run, taken = _tensor_places(function, parameters, starred, target)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    for name in needed:
        if name not in (*taken, *OPTIONS):
            raise InputError(
                f"target {target!r} needs a parameter {name!r} that attention does not have: give it a default"
            )
    absent = {f.name: f.default for f in fields(Call) if f.name in OPTIONS and f.name in needed}
    if absent:
        run = partial(run, **absent)
    claimed = [name for name in OPTIONS if name in names or (open_ended and name not in ASKED_BY_NAME)]
    tried = (*TRIED, *(f"grad_{name}" for name in claimed if f"grad_{name}" in FEATURES))
    features = tuple(name for name in FEATURES if name.split(".")[0] in (*claimed, *tried))
    flagless = "enable_gqa" not in claimed
    notes = tuple(f"parameter {n!r} claims nothing: did you mean {MEANT[n]}?" for n in names if n in MEANT)
    declared = Capabilities(
        features, accuracy=accuracy, causal_alignment=causal_alignment, alibi_alignment=alibi_alignment
    )
    return Claims(run, declared, flagless, notes)


def _tensor_places(
    function: Callable[..., Any], parameters: list[inspect.Parameter], starred: bool, target: str
) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """Return how to hand over the three tensors, and the names of the parameters that take them."""
    by_name = {SHORT.get(p.name, p.name): p.name for p in parameters if SHORT.get(p.name, p.name) in TENSORS}
    first = tuple(p.name for p in parameters if p.kind in POSITIONAL)[:3]
    if len(by_name) == 3 and [SHORT.get(name, name) for name in first] != list(TENSORS):
        places = tuple(by_name[name] for name in TENSORS)
        if not any(p.name in places and p.kind is inspect.Parameter.POSITIONAL_ONLY for p in parameters):
            return lambda q, k, v, **o: function(**dict(zip(places, (q, k, v), strict=True)), **o), places
        if set(first) == set(places):
            order = [places.index(name) for name in first]
            return lambda *tensors, **o: function(*(tensors[i] for i in order), **o), places
    if (len(first) == 3 or starred) and not set(first).intersection(OPTIONS):
        return function, first
    taking = ", ".join(p.name for p in parameters) or "nothing"
    raise InputError(f"target {target!r} takes {taking}: it must take query, key and value")


def signature_of(function: Callable[..., Any], target: str) -> inspect.Signature:
    """Return a callable's signature: of a module, that of its `forward`; of a builtin, what the first line of its
    documentation says, as PyTorch writes it.

    Raises InputError where there is none.
    """
    try:
        return inspect.signature(function.forward if isinstance(function, torch.nn.Module) else function)
    except (TypeError, ValueError):
        pass
    head = (getattr(function, "__doc__", None) or "").strip().partition("\n\n")[0]
    call = " ".join(head.split()).partition(" -> ")[0].rstrip(":")
    try:
        tree = ast.parse(f"def {call}: pass").body[0]
    except SyntaxError:
        tree = None
    if not isinstance(tree, ast.FunctionDef):
        raise InputError(f"target {target!r} has no readable signature: wrap it in a function with named parameters")
    required = len(tree.args.args) - len(tree.args.defaults)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [
            inspect.Parameter(arg.arg, kind, default=inspect.Parameter.empty if i < required else None)
            for i, arg in enumerate(tree.args.args)
        ]
    )
