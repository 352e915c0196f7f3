"""The budgets of the forms: finite, exact where nothing is rounded, wider in class eager, no less than one rounding."""

from __future__ import annotations

import pytest
import torch

from attnspec.conformance.forms.hold import FORMS
from attnspec.conformance.forms.merge import merge_budget
from attnspec.conformance.forms.projections import layer_error
from attnspec.golden.forms import FORM_CASES
from attnspec.golden.store import load_form
from attnspec.spec.dtypes import format_of
from attnspec.spec.errors import InputError


@pytest.mark.parametrize("name", [case.name for case in FORM_CASES])
def test_a_budget_is_finite_and_no_smaller_than_the_store_of_the_truth(name: str) -> None:
    golden = load_form(name)
    form = golden.case.form
    fused, eager = (FORMS[form].budgets(golden, accuracy) for accuracy in ("fused", "eager"))
    first = golden.inputs[golden.case.problem.leading]
    unit = format_of(first.dtype).unit_roundoff
    for tensor, budget in fused.items():
        truth = golden.truth[tensor]
        assert budget.shape == truth.shape
        assert budget.isfinite().all()
        assert (eager[tensor] >= budget * (1 - 1e-9)).all()
        if tensor != "lse":
            assert (budget >= unit * truth.abs()).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_sees_nothing_has_an_exact_lse(form: str) -> None:
    names = [
        case.name for case in FORM_CASES if case.form == form and "empty-" in case.name and "but-one" not in case.name
    ]
    for golden in map(load_form, names):
        if "lse" in golden.truth:
            empty = golden.truth["lse"] == -torch.inf
            assert empty.any()
            assert not FORMS[form].budgets(golden, "fused")["lse"][empty].any()


def test_a_layer_of_one_product_rounds_it_and_its_store() -> None:
    x, weight = torch.tensor([[3.0]]), torch.tensor([[0.5]])
    work, stored = 2.0**-24, 2.0**-8
    right = torch.tensor(((1 / 3 + 1 + 1 / 6 + 1) * work**2 + stored**2) ** 0.5 * 1.5, dtype=torch.float64)
    torch.testing.assert_close(layer_error(x, weight, None, work, stored)[0, 0], right)
    biased = layer_error(x, weight, torch.tensor([-1.5]), work, stored)[0, 0]
    torch.testing.assert_close(biased, right)  # the sum with the bias is 0, and its store rounds nothing


def test_a_merge_of_two_equal_parts_by_hand() -> None:
    outputs = torch.tensor([1.0, 3.0]).reshape(2, 1, 1, 1, 1)
    found = merge_budget(outputs, torch.zeros(2, 1, 1, 1))
    unit, log2 = 2.0**-24, 0.6931471805599453
    # the shares are 1/2, rho is 4w, and both parts lie 1 from their mean, 2
    error = unit * (4 * 1 + (log2 + 8) * 2 + 2 * 2) + 5 * 2.0**-126
    right = error + unit * (2 + error) + 2.0**-126
    assert found["output"].item() == pytest.approx(right, rel=1e-12)
    assert found["lse"].item() == pytest.approx(unit * (2 * log2 + 4 * log2 + 8) + 2.0**-126, rel=1e-12)


def test_another_class_is_told() -> None:
    with pytest.raises(InputError, match="accuracy is 'loose'"):
        FORMS["merge"].budgets(load_form("merge-two-float32"), "loose")
