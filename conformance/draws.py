"""Problems drawn by hypothesis: configurations and a seed, never tensor elements, so that a failing draw shrinks to
one short string.

A domain is a part of the spec from which problems are drawn. hypothesis is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnspec.conformance.case import Case, Draw, Ran
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.spec.problem import CAUSAL_ALIGNMENTS, Mask, Problem
from attnspec.spec.window import Window

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

LENGTHS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 66, 70, 127, 128, 129, 130, 134)
HEAD_DIMS = (1, 3, 8, 16, 24, 32, 64, 65, 80, 128)
HEADS = ((1, 1), (2, 2), (3, 3), (4, 2), (6, 2), (6, 3), (4, 1), (8, 1), (8, 4))
MASK_SHAPES = ("k", "qk", "1k", "hqk", "bhqk", "b1qk", "1hqk", "11qk", "b11k", "bh1k")
SIDES = (0, 3, -1, 1, 7, 16, 31, 64, 100)  # of windows
SCALES = (None, None, None, -0.7, 0.25, 3.0)


def problems(domain: str) -> SearchStrategy[Problem]:
    """Return a strategy of problems of a domain. Simplest first: short, one head, no options."""
    from hypothesis import strategies

    return strategies.composite(_problem)(domain)


def _problem(draw: DrawFn, domain: str) -> Problem:
    from hypothesis import strategies as some

    pick: Callable[[tuple[Any, ...]], Any] = lambda values: draw(some.sampled_from(values))  # noqa: E731
    drawn = Problem(
        q_len=pick(LENGTHS),
        k_len=pick(LENGTHS),
        head_dim=pick(HEAD_DIMS),
        batch=pick((1, 2)),
        q_heads=pick((1, 2)),
        causal=pick((None, "upper_left", "lower_right")),
        seed=draw(some.integers(0, 999)),
    )
    if domain == "core":
        return drawn
    if domain == "windows":
        return drawn.but(window=Window(pick(SIDES), pick(SIDES), None if drawn.causal else pick(CAUSAL_ALIGNMENTS)))
    drawn = drawn.but(scale=pick(SCALES), scores=pick((1.0, 0.125, 4.0)))
    if domain == "grouped":
        q_heads, kv_heads = pick(HEADS[3:])
        drawn = drawn.but(q_heads=q_heads, kv_heads=kv_heads)
    if domain == "masks" or (domain != "grouped" and draw(some.booleans())):
        content = pick(("random", "padding", "empty_rows", "leading"))
        drawn = drawn.but(mask=Mask(pick(("bool", "float")), pick(MASK_SHAPES), content))
    dtypes = {"half": ("bfloat16", "float16"), "double": ("float64",)}.get(domain, ("float32",))
    return drawn.but(dtype=pick(dtypes))


def try_drawn(
    body: Callable[[Kernel, Case], float | Ran | None], kernel: Kernel, case: Case, draw: Draw
) -> float | None:
    """Run a case's check on problems drawn from a domain and return the worst error over budget.

    The same seed draws the same problems. A problem that the kernel does not support is passed over. Raises Violation,
    for the smallest problem that shows it, with the case of that problem as its `case`; NotSupported where the kernel
    supports none.
    """
    if case.problem.window is not None:
        kernel.need(case.problem)  # of a domain that stands or falls with one feature
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    errors: list[float] = []
    refused: list[NotSupported] = []
    head_dims: list[int] = []
    ran = [0]

    @seeded(draw.seed)
    @settings(
        max_examples=draw.examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(problems(draw.domain))
    def run(problem: Problem) -> None:
        drawn = case.on(fitted(problem, kernel))
        try:
            found = body(kernel, drawn)
        except NotSupported as refusal:
            refused.append(refusal)
            head_dims.append(drawn.problem.head_dim)
            return
        except Violation as violation:
            violation.case = drawn
            raise
        ran[0] += 1
        error = found.error_over_budget if isinstance(found, Ran) else found
        errors.extend([] if error is None else [error])

    run()
    if not ran[0]:
        refused[-1].head_dims = tuple(head_dims)
        raise refused[-1]
    return max(errors, default=None)


def fitted(problem: Problem, kernel: Kernel) -> Problem:
    """Return the problem in the dialect of the kernel."""
    return kernel.capabilities.fitted(problem)
