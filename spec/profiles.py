"""Profiles: named parts of the spec that a user can ask for (chapter "profiles")."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attnspec.spec.errors import InputError, did_you_mean
from attnspec.spec.problem import Problem


@dataclass(frozen=True)
class Profile:
    """A named part of the spec. holds: whether a problem belongs to it, given whether the lse is asked for."""

    name: str
    summary: str
    holds: Callable[[Problem, bool], bool]


def _is_core(problem: Problem, return_lse: bool) -> bool:
    return problem.dtype == "float32" and not return_lse and problem.features() <= {"is_causal"}


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("core", "float32, no mask, any lengths, causal where claimed", _is_core),
        Profile("masks", "boolean and additive attn_mask", lambda problem, lse: problem.mask is not None),
        Profile(
            "grouped", "fewer key heads than query heads", lambda problem, lse: problem.q_heads != problem.kv_heads
        ),
        Profile("half", "bfloat16 and float16", lambda problem, lse: problem.dtype in ("bfloat16", "float16")),
        Profile("double", "float64", lambda problem, lse: problem.dtype == "float64"),
        Profile("decode", "key_lengths, as a cache has them", lambda problem, lse: problem.key_lengths is not None),
        Profile("alibi", "a bias by the distance, with slopes", lambda problem, lse: problem.alibi is not None),
        Profile("sinks", "a sink beside the keys of each row", lambda problem, lse: problem.sinks is not None),
        Profile("gradients", "the backward pass", lambda problem, lse: problem.grad is not None),
        Profile("windows", "window_size", lambda problem, lse: problem.window is not None),
        Profile("softcap", "scores capped by a tanh", lambda problem, lse: problem.softcap is not None),
        Profile("dropout", "dropout on the weights", lambda problem, lse: problem.dropout is not None),
        Profile("lse", "the log of the sum of exponentials", lambda problem, lse: lse),
    )
}


def profile(name: str) -> Profile:
    """Return the profile called `name`. Raises InputError."""
    if name not in PROFILES:
        raise InputError(f"unknown profile {name!r}: use one of {', '.join(PROFILES)}{did_you_mean(name, PROFILES)}")
    return PROFILES[name]
