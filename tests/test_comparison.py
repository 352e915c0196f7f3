"""The comparator: what counts as within the budget, and what never does."""

from __future__ import annotations

import pytest
import torch

from attnspec.conformance.checks.relations import difference
from attnspec.conformance.comparison import Comparison, compare, overflow_edge
from attnspec.conformance.outcome import Violation
from attnspec.spec.call import Result
from attnspec.spec.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FORMATS, Format
from attnspec.spec.problem import Problem

NAN, INF = float("nan"), float("inf")
AXES = ("batch", "head", "row", "column")


def compared(got: object, truth: object, budget: float = 0.1, fmt: Format = FLOAT32) -> Comparison:
    """Compare two tensors, the same budget everywhere."""
    right = torch.as_tensor(truth, dtype=torch.float64)
    return compare(torch.as_tensor(got), right, torch.full_like(right, budget), fmt)


@pytest.fixture
def truth() -> torch.Tensor:
    """A true output with heads that differ, (batch, heads, rows, columns), nowhere near 0."""
    drawn = torch.randn(2, 4, 5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return drawn + 10 * drawn.sign() + 40 * torch.arange(4)[None, :, None, None]


@pytest.mark.parametrize(
    ("got", "truth", "ratio"),
    [
        (1.0, 1.0, 0.0),
        (1.05, 1.0, 0.5),
        (0.8, 1.0, 2.0),
        (0.0, -0.0, 0.0),
        (-0.0, 0.0, 0.0),
        (NAN, 1.0, INF),
        (1.0, NAN, INF),
        (NAN, NAN, 0.0),
        (INF, NAN, INF),
        (NAN, INF, INF),
        (NAN, -INF, INF),
        (INF, INF, 0.0),
        (-INF, -INF, 0.0),
        (-INF, INF, INF),
        (INF, -INF, INF),
        (INF, 1.0, INF),
        (-INF, 1.0, INF),
        (1.0, INF, INF),
        (3.4e38, INF, INF),
        (-3.4e38, -INF, INF),
    ],
)
def test_one_element_is_so_many_budgets_off(got: float, truth: float, ratio: float) -> None:
    assert compared([got], [truth]).error_over_budget == pytest.approx(ratio)
    assert compared([got], [truth]).holds == (ratio <= 1)


@pytest.mark.parametrize("neighbour", [0.0, NAN, INF, -INF])
def test_a_special_value_hides_no_wrong_neighbour(neighbour: float) -> None:
    comparison = compared([neighbour, 5.0, neighbour], [neighbour, 1.0, neighbour])
    assert comparison.wrong.tolist() == [False, True, False]


@pytest.mark.parametrize("finite", [0.0, -1e4, -1e9, -3.4e38, 3.4e38, INF, NAN])
def test_an_lse_of_minus_infinity_is_met_by_nothing_else(finite: float) -> None:
    assert compared([finite], [-INF], 0.0).error_over_budget == INF


@pytest.mark.parametrize(("got", "ratio"), [(1.0, 0.0), (1.0 + 2**-23, INF), (-0.0, INF)])
def test_a_budget_of_zero_allows_no_error(got: float, ratio: float) -> None:
    assert compared([got], [1.0], 0.0).error_over_budget == ratio


@pytest.mark.parametrize(
    ("got", "truth", "budget", "words"),
    [
        (1.5, 1.0, 0.1, "is 5 times as far from the exact one as an honest result may be"),
        (1.5, 1.0, 0.0, "must be exact, and is not"),
        (NAN, 1.0, 0.0, "holds NaN where a number is right"),
        (-INF, 1.0, 0.1, "is -inf where a number is right"),
        (1.0, -INF, 0.1, "is 1 where only -inf is right"),
        (1.0, NAN, 0.1, "is 1 where only nan is right"),
    ],
)
def test_what_is_wrong_is_told_in_words(got: float, truth: float, budget: float, words: str) -> None:
    assert compared([0.0, got], [0.0, truth], budget).what == words


@pytest.mark.parametrize(
    ("fmt", "edge"),
    [(FLOAT16, 65520.0), (BFLOAT16, 2.0**128 - 2.0**119), (FLOAT32, 2.0**128 - 2.0**103), (FLOAT64, INF)],
)
def test_the_overflow_edge_is_halfway_to_the_next_power_of_two(fmt: Format, edge: float) -> None:
    assert overflow_edge(fmt) == edge


@pytest.mark.parametrize(
    ("truth", "budget", "got", "holds"),
    [
        (65504.0, 1.0, INF, False),  # the largest number itself does not round to infinity
        (65504.0, 16.0, INF, True),
        (65519.0, 0.5, INF, False),
        (65519.0, 1.0, INF, True),
        (65520.0, 0.0, INF, True),
        (70000.0, 0.0, INF, True),
        (-70000.0, 0.0, -INF, True),
        (70000.0, 0.0, -INF, False),
        (70000.0, 1.0, 65504.0, False),  # saturating is no overflow
        (65519.0, 16.0, 65504.0, True),
        (70000.0, 1.0, NAN, False),
    ],
)
def test_float16_may_overflow_where_the_budget_reaches_the_edge(
    truth: float, budget: float, got: float, holds: bool
) -> None:
    assert compared(torch.tensor([got]).half(), [truth], budget, FLOAT16).holds == holds


@pytest.mark.parametrize("fmt", [BFLOAT16, FLOAT32])
@pytest.mark.parametrize(("factor", "holds"), [(1.0, True), (0.999, False)])
def test_the_wide_formats_overflow_at_their_own_edge(fmt: Format, factor: float, holds: bool) -> None:
    assert compared([INF], [overflow_edge(fmt) * factor], 1.0, fmt).holds == holds


@pytest.mark.parametrize("truth", [65520.0, 1e38])
def test_an_infinity_of_float32_is_judged_by_the_edge_of_float32(truth: float) -> None:
    assert not compared([INF], [truth], 1.0, FLOAT32).holds


@pytest.mark.parametrize(("budget", "holds"), [(1e290, False), (1e300, True)])
def test_float64_overflows_where_the_sum_itself_does(budget: float, holds: bool) -> None:
    assert compared(torch.tensor([INF]).double(), [FLOAT64.largest], budget, FLOAT64).holds == holds


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
def test_every_dtype_is_compared_in_float64(fmt: Format) -> None:
    got = torch.tensor([1.0, 3.0]).to(fmt.torch_dtype)
    assert compared(got, [1.0, 3.5], 0.25, fmt).ratio.tolist() == [0.0, 2.0]


def test_all_nan_is_wrong_everywhere(truth: torch.Tensor) -> None:
    comparison = compared(torch.full_like(truth, NAN), truth)
    assert comparison.wrong.all()
    assert comparison.nan_appeared
    assert (
        dict(comparison.details("output", AXES))["pattern"]
        == "120 of 120 elements: every element; output is NaN everywhere"
    )


def test_a_gradient_of_0_is_told_where_half_of_it_is_wrong() -> None:
    got, truth = torch.zeros(2, 3), torch.tensor([[0.0] * 3, [1.0] * 3])
    details = dict(compared(got, truth).details("grad_sinks", ("batch", "head")))
    assert details["pattern"] == "3 of 6 elements: all with batch 1; grad_sinks is 0 everywhere"


def test_one_wrong_row_is_found_and_named(truth: torch.Tensor) -> None:
    got = truth.clone()
    got[1, 2, 3] += 1
    details = dict(compared(got, truth).details("output", AXES))
    assert details["pattern"] == "3 of 120 elements: all with batch 1, head 2, row 3"
    assert details["worst"].startswith("output[1, 2, 3, ")


def test_the_worst_element_is_named_with_its_error(truth: torch.Tensor) -> None:
    got = truth.clone()
    got[0, 1, 2, 0] += 1
    got[1, 3, 4, 2] += 4
    details = dict(compared(got, truth).details("output", AXES))
    assert details["worst"].startswith("output[1, 3, 4, 2] (batch 1, head 3, row 4, column 2) is ")
    assert details["error"] == "40 budgets (budget 0.1, error 4)"


@pytest.mark.parametrize(
    ("axes", "labels"),
    [
        (AXES, ["worst row", "worst head"]),
        (("batch", "head", "key", "column"), ["worst key", "worst head"]),
        (("page", "slot", "head", "column"), ["worst head", "worst slot"]),
        (("batch", "key", "column"), ["worst key"]),
        (("token", "head", "column"), ["worst head"]),
        (("bucket", "head"), []),
        (("distance",), []),
    ],
)
def test_the_worst_part_is_labelled_by_the_last_axis_that_it_names(axes: tuple[str, ...], labels: list[str]) -> None:
    truth = torch.ones((3,) * len(axes))
    details = dict(compared(2 * truth, truth).details("output", axes))
    assert [label for label in details if label.startswith("worst ")] == labels
    for label in labels:
        assert details[label].partition(":")[0].rpartition(", ")[2].startswith(f"{label.removeprefix('worst ')} ")


@pytest.mark.parametrize("factor", [0.5, -1.0, 0.0])
def test_a_uniform_factor_is_wrong_everywhere(truth: torch.Tensor, factor: float) -> None:
    assert compared(factor * truth, truth).wrong.all()


def test_permuted_heads_are_wrong_in_those_heads(truth: torch.Tensor) -> None:
    comparison = compared(truth[:, [0, 2, 1, 3]], truth)
    assert dict(comparison.details("output", AXES))["pattern"].endswith("all with head 1-2")


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)])
def test_empty_tensors_agree(shape: tuple[int, ...]) -> None:
    comparison = compared(torch.zeros(shape), torch.zeros(shape))
    assert comparison.holds
    assert comparison.error_over_budget == 0


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 2), (2, 1), (2, 2, 1)])
def test_another_shape_is_a_defect_of_the_suite(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        compared(torch.zeros(shape), torch.zeros(2, 2))


def test_a_kernel_output_that_requires_grad_is_compared() -> None:
    assert compared(torch.ones(2, requires_grad=True), [1.0, 1.0]).holds


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (2.0, "must be exact, and is not"),
        (NAN, "holds NaN where a number is right"),
        (INF, "is inf where a number is right"),
    ],
)
def test_two_runs_that_are_infinitely_far_apart_are_told_in_words(other: float, words: str) -> None:
    got, right, allowed = (Result(torch.full((1, 1, 1, 1), number)) for number in (other, 1.0, 0.0))
    with pytest.raises(Violation) as found:
        difference(Problem.parse("q=1/k=1/d=1"), "attention.output", "keys reversed", got, right, allowed)
    assert found.value.what == f"keys reversed, the output {words}"
