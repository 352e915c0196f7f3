"""The domains from which problems are drawn: parts of the spec, each with a problem that stands for it."""

from __future__ import annotations

from attnspec.spec.errors import InputError
from attnspec.spec.problem import Mask, Problem
from attnspec.spec.window import Window

DOMAINS = {  # name: a problem in it, which tells its profile
    "core": Problem(q_len=1, k_len=1, head_dim=64),
    "masks": Problem(q_len=1, k_len=1, head_dim=64, mask=Mask("bool", "qk", "random")),
    "grouped": Problem(q_len=1, k_len=1, head_dim=64, q_heads=6, kv_heads=2),
    "half": Problem(q_len=1, k_len=1, head_dim=64, dtype="bfloat16"),
    "double": Problem(q_len=1, k_len=1, head_dim=64, dtype="float64"),
    "windows": Problem(q_len=1, k_len=1, head_dim=64, window=Window(0, 0)),
}


def domain_named(name: str) -> Problem:
    """Return the problem that stands for a domain. Raises InputError."""
    if name not in DOMAINS:
        raise InputError(f"unknown domain {name!r}: use one of {', '.join(DOMAINS)}")
    return DOMAINS[name]
