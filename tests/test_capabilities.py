"""Capabilities, profiles and names: what a kernel can do, which problems a profile holds, unknown names."""

from __future__ import annotations

from typing import Any

import pytest

from attnspec.spec.capabilities import Capabilities
from attnspec.spec.dtypes import format_named
from attnspec.spec.errors import InputError
from attnspec.spec.problem import Problem
from attnspec.spec.profiles import PROFILES, profile

PAIR = ("attn_mask", "is_causal")


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (lambda: format_named("fp8"), "'fp8'"),
        (lambda: profile("fast"), "'fast'"),
        (lambda: Capabilities(features=("windows",)), "'windows'"),
        (lambda: Capabilities(refuses=(("attn_mask", "speed"),)), "'speed'"),
        (lambda: Capabilities(dtypes=("int8",)), "'int8'"),
        (lambda: Capabilities(causal_alignment="left"), "'left'"),
        (lambda: Capabilities(lse_base="10"), "'10'"),
        (lambda: Capabilities(accuracy="loose"), "'loose'"),
    ],
)
def test_an_unknown_name_is_an_input_error_that_tells_the_right_ones(act: Any, named: str) -> None:
    with pytest.raises(InputError) as error:
        act()
    assert one_line(error.value)
    assert named in str(error.value)
    assert "use one of" in str(error.value)


@pytest.mark.parametrize(
    ("declared", "text", "lacking"),
    [
        (Capabilities(), "q=5/k=9/d=8/causal/mask=bool.b11k.padding", None),
        (Capabilities(features=("attn_mask",)), "q=5/k=9/d=8/mask=float.qk.bias", None),
        (Capabilities(features=()), "q=5/k=9/d=8/mask=bool.k.padding", "attn_mask.bool"),
        (Capabilities(features=("attn_mask.bool",)), "q=5/k=9/d=8/mask=bool.k.padding", "attn_mask.rank1"),
        (Capabilities(refuses=(PAIR,)), "q=5/k=9/d=8/causal/mask=bool.k.all", "attn_mask with is_causal"),
        (Capabilities(refuses=(PAIR,)), "q=5/k=9/d=8/causal", None),
        (Capabilities(dtypes=("float32",)), "q=5/k=9/d=8/dtype=bf16", "bfloat16"),
        (Capabilities(head_dims=(1, 64)), "q=5/k=9/d=8/dv=65", "head_dim"),
        (Capabilities(), "q=5/k=9/d=8/causal=lower_right", "causal_alignment"),
        (Capabilities(), "q=9/k=9/d=8/causal=lower_right", None),
    ],
)
def test_capabilities_say_what_of_a_problem_they_lack(declared: Capabilities, text: str, lacking: str | None) -> None:
    said = declared.lacks(Problem.parse(text))
    assert (said is None) if lacking is None else (said is not None and lacking in said)


@pytest.mark.parametrize(
    ("text", "lse", "names"),
    [
        ("q=5/k=9/d=8", False, {"core"}),
        ("q=5/k=9/d=8/causal", False, {"core"}),
        ("q=5/k=9/d=8/causal", True, {"lse"}),
        ("q=0/k=9/d=8", False, set()),
        ("q=5/k=9/d=8/mask=bool.k.padding", False, {"masks"}),
        ("q=5/k=9/d=8/hq=4/hkv=2/dtype=fp16", False, {"grouped", "half"}),
        ("q=5/k=9/d=8/dtype=float64/scale=1", False, {"double"}),
        ("q=5/k=9/d=8/scale=1", False, set()),
        ("q=5/k=9/d=8/dropout=0.5", False, {"dropout"}),
        ("b=2/q=5/k=9/d=8/lengths=ragged", False, {"decode"}),
        ("q=5/k=9/d=8/grad", False, {"gradients"}),
    ],
)
def test_profiles_hold_the_problems_that_their_chapter_says(text: str, lse: bool, names: set[str]) -> None:
    assert {p.name for p in PROFILES.values() if p.holds(Problem.parse(text), lse)} == names


def one_line(error: InputError) -> bool:
    """Whether the message is one line that is not empty."""
    return len(str(error).splitlines()) == 1
