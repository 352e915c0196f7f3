"""The budgets of the forms: finite, exact where nothing is rounded, wider in class eager, no less than one rounding."""

from __future__ import annotations

import pytest
import torch

from attnspec.conformance.budget import arithmetic_of, error_budget
from attnspec.conformance.forms import latent, multi_head
from attnspec.conformance.forms.hold import FORMS
from attnspec.conformance.forms.merge import merge_budget
from attnspec.conformance.forms.projections import layer_error
from attnspec.conformance.forms.relative_bias import sum_budget
from attnspec.conformance.row_errors import CONFIDENCE
from attnspec.conformance.rows import Rows, score_ties
from attnspec.golden.forms import FORM_CASES
from attnspec.golden.store import load_form
from attnspec.spec.call import Call
from attnspec.spec.dtypes import format_of
from attnspec.spec.errors import InputError

EXACT = ("buckets", "bias", "visible")  # results that nothing rounds, but for slopes
KEPT = ("rope", "quantise", "relative_bias")  # position 0, beyond rotary_dim, stored numbers, sums of one term


@pytest.mark.parametrize("name", [case.name for case in FORM_CASES])
def test_a_budget_is_finite_and_no_smaller_than_the_store_of_the_truth(name: str) -> None:
    golden = load_form(name)
    form = golden.case.form
    fused, eager = (FORMS[form].budgets(golden, accuracy) for accuracy in ("fused", "eager"))
    leading = golden.case.problem.leading
    unit = 0.0 if not leading else format_of(golden.inputs[leading].dtype).unit_roundoff
    for tensor, budget in fused.items():
        truth = golden.truth[tensor]
        assert budget.shape == truth.shape
        assert budget.isfinite().all()
        assert (eager[tensor] >= budget * (1 - 1e-9)).all()
        if tensor in EXACT and form != "alibi_bias":
            assert not budget.any()
        elif tensor != "lse":
            kept = (budget == 0) & (form in KEPT)
            assert ((budget >= unit * truth.abs()) | kept).all()


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


def test_an_error_of_a_shared_key_or_value_moves_the_query_heads_of_its_group_together() -> None:
    """The part of equation (7) that projected keys and values add is Σ ε² J², J the derivative of the output by a head
    that several query heads read, as autograd gives it."""
    golden = load_form("multi-head-grouped-float32")
    module = multi_head._module(golden, arithmetic_of(format_of(torch.float32)))
    q, w_o, visible, scale = module.q[0], module.w_o, module.visible[0], module.q.shape[-1] ** -0.5

    def output(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        key, value = (x.repeat_interleave(3, 0) for x in (k, v))
        scores = (scale * q @ key.transpose(-1, -2)).masked_fill(~visible, -torch.inf)
        return (scores.softmax(-1) @ value @ w_o.transpose(-1, -2)).sum(0)

    by_k, by_v = torch.autograd.functional.jacobian(output, (module.k[0], module.v[0]))  # (q_len, d_model, 2, k_len, d)
    right = sum((of**2 * e[0] ** 2).sum((-3, -2, -1)) for of, e in ((by_k, module.e_k), (by_v, module.e_v)))
    outward = module.v[0].repeat_interleave(3, 0) @ w_o.transpose(-1, -2)
    arithmetic = arithmetic_of(format_of(torch.float32))
    rows = Rows.of(q, module.k[0].repeat_interleave(3, 0), outward, None, visible, scale, arithmetic)
    assert (score_ties(rows) == 1).all()
    found = multi_head._of_groups(module, 0, rows, score_ties(rows), scale)
    torch.testing.assert_close(found, right, rtol=1e-10, atol=0)


def test_another_class_is_told() -> None:
    with pytest.raises(InputError, match="accuracy is 'loose'"):
        FORMS["merge"].budgets(load_form("merge-two-float32"), "loose")


def test_a_slope_and_a_bias_by_hand() -> None:
    slopes = FORMS["alibi_slopes"].budgets(load_form("alibi-slopes-of-3"), "fused")["slopes"]
    assert slopes.tolist() == [2.0**-20, 2.0**-24, 2.0**-18]  # 2^-16 of 2^-4, 2^-8 and 2^-2
    bias = FORMS["alibi_bias"].budgets(load_form("alibi-bias-one-query-float32"), "fused")["bias"]
    assert bias[0, 0, 0].tolist() == [2.0**-25 * distance for distance in range(16, -1, -1)]
    wide = FORMS["alibi_bias"].budgets(load_form("alibi-bias-drawn-float64"), "fused")["bias"]
    right = load_form("alibi-bias-drawn-float64").truth["bias"].abs() * 2.0**-53
    assert torch.equal(wide, right)


def test_the_sum_of_a_table_entry_by_hand() -> None:
    terms = torch.tensor([3.0, -4.0, 2.0, 2.0], dtype=torch.float64)  # 7 above 0, 3 additions, the sum 3
    fused, eager = (arithmetic_of(format_of(torch.bfloat16), accuracy) for accuracy in ("fused", "eager"))
    for a, unit in ((fused, 2.0**-24), (eager, 2.0**-8)):
        error = unit * 3 * 7
        assert sum_budget(terms, a) == error + 2.0**-8 * (3 + error) + 2.0**-126
    assert sum_budget(terms[:1], eager) == sum_budget(terms[:0], eager) == 0


def test_a_sum_of_many_terms_is_off_by_chance_alone() -> None:
    terms = torch.arange(1.0, 1001.0, dtype=torch.float64)
    a = arithmetic_of(format_of(torch.float32))
    error = 2.0**-24 * CONFIDENCE * 999**0.5 * 500500
    assert sum_budget(terms, a) == pytest.approx(error + 2.0**-24 * (500500 + error), rel=1e-12)
    equal = torch.ones(1000, dtype=torch.float64)  # additions of equal terms may all round one way
    assert sum_budget(equal, a) == pytest.approx(2.0**-24 * 999 * 1000 + 2.0**-24 * 1000, rel=1e-4)


def one_token(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Latent attention over one token of rank 1: c = 3, kr = 0, W^UK = 1, W^UV = 1, q = 0."""
    ones = torch.ones(1, 1, 1, dtype=dtype)
    return {
        "query": torch.zeros(1, 1, 2, dtype=dtype), "latent": 3 * ones[0], "key_rope": 0 * ones[0], "w_uk": ones,
        "w_uv": ones, "visible": torch.ones(1, 1, 1, dtype=torch.bool),
    }  # fmt: skip


def test_the_value_of_one_token_is_stored_once_in_each_form_of_latent_attention() -> None:
    a = arithmetic_of(format_of(torch.bfloat16))
    expanded, absorbed = (
        work(**one_token(torch.bfloat16), scale=1.0, a=a)[0].item()
        for work in (latent.expanded_budget, latent.absorbed_budget)
    )
    value = torch.full((1, 1, 1, 1), 3.0, dtype=torch.bfloat16)
    alone = error_budget(Call(query=0 * value, key=0 * value, value=value, scale=1.0)).output.item()
    unit = 2.0**-8
    stored = CONFIDENCE * unit * 3  # of the value, or of the sum, before W^UV
    assert expanded == pytest.approx(alone + stored * (1 + unit), rel=1e-4)
    assert absorbed == pytest.approx(alone + stored * (1 + unit), rel=1e-4)


def test_a_row_of_no_key_is_exact_in_latent_attention() -> None:
    given = one_token(torch.float32) | {"visible": torch.zeros(1, 1, 1, dtype=torch.bool)}
    for work in (latent.expanded_budget, latent.absorbed_budget):
        output, lse = work(**given, scale=1.0, a=arithmetic_of(format_of(torch.float32)))
        assert output.item() < 2.0**-120
        assert lse.item() == 0


def test_class_eager_stores_the_two_parts_of_a_score_of_the_absorbed_form() -> None:
    """The parts are 3 and -3: their sum, 0, is stored without an error."""
    given = one_token(torch.bfloat16)
    given |= {"query": torch.tensor([[[1.0, -3.0]]]).bfloat16(), "key_rope": torch.ones(1, 1).bfloat16()}
    fused, eager = (
        latent.absorbed_budget(**given, scale=1.0, a=arithmetic_of(format_of(torch.bfloat16), accuracy))[1].item()
        for accuracy in ("fused", "eager")
    )
    layer = 3.0  # q W^UK is stored in either class
    parts = CONFIDENCE * 2.0**-8 * ((layer**2 + 2 * 3.0**2) ** 0.5 - layer)
    assert eager - fused == pytest.approx(parts, rel=1e-3)
