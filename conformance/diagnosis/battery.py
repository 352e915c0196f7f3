"""A battery of small problems that tell mistakes apart which one failing case does not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from attnspec.spec.alibi import ALIBI_FORMS, Alibi
from attnspec.spec.capabilities import Capabilities
from attnspec.spec.problem import SINKS, Mask, Problem
from attnspec.spec.window import Window

LENGTHS = ((19, 121), (121, 37), (33, 33), (37, 70), (37, 150))  # no multiple of any tile, and beyond the largest
HEAD_DIMS = (20, 36, 72, 100)  # that pad to different multiples
LOW = ("low", "sentinel")  # biases below the usual finite stand-ins for -inf
SCORE_SIZES = (4.0, 100.0, 1e6, 1e11)  # up to below those stand-ins, and beyond the range of an exponential


def battery(case: Problem, capabilities: Capabilities) -> Iterator[Problem]:
    """Return the problems that lie within a kernel's capabilities, of a case's dtype; those like the case first."""
    likely = list(_problems(case, capabilities.causal_alignment, capabilities.alibi_corner))
    wanted = case.features()
    likely.sort(key=lambda problem: len(problem.features() ^ wanted))  # stable: else in the order below
    for problem in (case.but(seed=case.seed + 1), *likely):
        if capabilities.lacks(problem) is None:
            yield problem


def with_gradients(case: Problem, capabilities: Capabilities) -> Iterator[Problem]:
    """Return the problems of the battery with the gradients of a case, of slopes too where it asks for them."""
    for problem in battery(case, capabilities):
        alibi = problem.alibi and problem.alibi._replace(learned=bool(case.alibi and case.alibi.learned))
        flowing = problem.but(grad=case.grad, alibi=alibi)
        if capabilities.lacks(flowing) is None:
            yield flowing


def _problems(case: Problem, corner: str, alibi_corner: str) -> Iterator[Problem]:
    base = Problem(q_len=19, k_len=77, head_dim=case.head_dim, batch=2, q_heads=2, dtype=case.dtype, seed=7)
    for (q_len, k_len), causal in product(LENGTHS, (None, corner)):
        yield base.but(q_len=q_len, k_len=k_len, causal=causal)
    for kind, content, causal in product(("bool", "float"), ("random", "empty_rows"), (None, corner)):
        yield base.but(mask=Mask(kind, "bhqk", content), causal=causal)
        yield base.but(mask=Mask(kind, "hqk", content), causal=causal, q_len=45, k_len=45)
    yield base.but(mask=Mask("bool", "b11k", "padding"), batch=3)
    yield base.but(mask=Mask("float", "qk", "bias"), scale=-0.7)
    for causal, mask in product((None, corner), (None, Mask("bool", "bhqk", "random"))):
        yield base.but(q_heads=6, kv_heads=2, causal=causal, mask=mask)
    yield base.but(q_heads=4, kv_heads=2)
    for scale in (-0.7, 0.0, 0.3):
        yield base.but(scale=scale)
    for size, causal in product(((5, 0), (2, 7)), (None, corner)):
        yield base.but(window=Window(*size, None if causal else corner), causal=causal, q_len=37)
    for (q_len, k_len), causal in product(((5, 70), (37, 20)), (None, corner)):
        yield base.but(q_len=q_len, k_len=k_len, causal=causal, key_lengths="ragged", batch=4)
    for mask, causal in product((None, Mask("float", "bhqk", "random")), (None, corner)):
        yield base.but(softcap=1.5, scores=4.0, mask=mask, causal=causal)
    yield base.but(value_dim=24 if case.head_dim != 24 else 40)
    for head_dim in HEAD_DIMS:
        yield base.but(head_dim=head_dim)
    for scores, causal in product(SCORE_SIZES, (None, corner)):
        yield base.but(scores=scores, causal=causal)
    for form, causal in product(ALIBI_FORMS, (None, corner)):
        yield base.but(q_heads=6, kv_heads=2, alibi=Alibi(form, alibi_corner), causal=causal)
        yield base.but(q_len=45, k_len=45, batch=3, alibi=Alibi(form, alibi_corner), causal=causal)
    for kind in SINKS:
        yield base.but(q_heads=6, kv_heads=2, sinks=kind)
        yield base.but(sinks=kind, causal=corner)
    for content in LOW:
        yield base.but(mask=Mask("float", "bhqk", content), causal=corner)
