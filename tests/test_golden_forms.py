"""The golden cases of the forms: what they cover, that the float64 reference and values worked out by hand agree, and
that they come out the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from form_references import by_reference

from attnspec.conformance.comparison import compare
from attnspec.conformance.forms.hold import FORMS as HELD
from attnspec.golden.cases import CASES
from attnspec.golden.difference import diff
from attnspec.golden.files import VECTORS
from attnspec.golden.forms import FORM_CASES, FORMS, form_case, problem_of
from attnspec.golden.forms.form import FormCase
from attnspec.golden.regenerate import make, regenerate
from attnspec.golden.store import FormGolden, check, load, load_form, load_forms
from attnspec.reference.attention import attention
from attnspec.reference.exact import attention as exact_attention
from attnspec.spec.dtypes import FLOAT64
from attnspec.spec.errors import InputError
from attnspec.spec.rules import all_rules

Tensors = dict[str, torch.Tensor]

ADDITIVE = "accuracy.additive-within-budget"
CITED = {
    "merge": {"flash.merge-empty", "flash.merge-gap", "flash.merge-associative", "accuracy.merge-within-budget"},
    "multi_head": {
        *(f"multi-head.{rule}" for rule in ("projections", "split", "concat-order", "output-projection")),
        *(f"multi-head.{rule}" for rule in ("mask-convention", "cross-lengths", "empty-row")),
        *("attention.scale-default", "accuracy.multi-head-within-budget"),
        *("grouped.head-map", "grouped.multi-query"),
    },
    "additive": {*(f"additive.{rule}" for rule in ("score", "softmax", "mask")), "mask.finite-bias", ADDITIVE},
    "packed": {
        *(f"packed.{rule}" for rule in ("separate", "causal", "window", "zero-length", "key-lengths", "tail")),
        *("packed.backward", "grouped.head-map", "attention.value-dim", "attention.scale-explicit"),
        *("mask.fully-masked-row", *(f"accuracy.{what}-within-budget" for what in ("output", "lse", "gradients"))),
    },
    "paged": {
        *(f"paged.{rule}" for rule in ("order", "absent", "page-size", "causal", "packed-queries", "length-range")),
        *("paged.backward", "grouped.head-map", "attention.value-dim", "attention.scale-explicit"),
        *("mask.fully-masked-row", *(f"accuracy.{what}-within-budget" for what in ("output", "lse", "gradients"))),
    },
    "rope": {
        *(f"rope.{rule}" for rule in ("rotation", "layout", "partial", "position", "distance", "precision")),
        *("rope.gradient", "accuracy.rope-within-budget"),
    },
    "quantise": {"quantised.rounding"},
    "quantised": {
        *(f"quantised.{rule}" for rule in ("dequantise", "granularity", "absent", "backward")),
        *("key-lengths.absent", "key-lengths.zero", "grouped.head-map", "accuracy.quantised-within-budget"),
        "mask.visible-nan",
    },
    "latent": {
        *(f"latent.{rule}" for rule in ("expanded", "absorbed", "scale", "shared-rope", "gradient")),
        *(f"key-lengths.{rule}" for rule in ("visible", "absent", "causal", "zero")),
        *("attention.scale-explicit", "mask.causal-upper-left", "mask.fully-masked-row", "softmax.lse"),
        "accuracy.latent-within-budget",
    },
    "alibi_slopes": {"alibi.slopes"},
    "alibi_bias": {"alibi.bias", "alibi.form", "alibi.offset"},
    "relative_bucket": {"relative-bias.bucket", "relative-bias.direction"},
    "relative_bias": {f"relative-bias.{rule}" for rule in ("bucket", "direction", "head", "offset", "gradient")},
    "document_mask": {f"document-mask.{rule}" for rule in ("same-document", "causal", "padding")},
    "prefix_lm": {"prefix-lm.visible"},
    "context_parallel": {
        *(f"context-parallel.{rule}" for rule in ("merge", "positions", "order", "backward")),
        *("grouped.head-map", "attention.value-dim", "attention.scale-explicit", "mask.fully-masked-row"),
        *("flash.merge-gap", *(f"accuracy.{what}-within-budget" for what in ("output", "lse", "gradients"))),
    },
}
WITHOUT_DTYPE = {"alibi_slopes", "relative_bucket", "document_mask", "prefix_lm"}  # numbers and masks alone
SMALL = ("merge-gap-90-float32", "multi-head-empty-row-bfloat16", "additive-padding-float32", "dropout-third-float16")
SMALL += ("packed-gradients-float32", "paged-packed-mixed-float16", "paged-gradients-packed-lse-bfloat16")
SMALL += ("relative-bias-gradient-float16",)


@pytest.fixture(scope="module")
def goldens() -> dict[str, FormGolden]:
    """Every stored case by name."""
    return {golden.case.name: golden for form in FORMS for golden in load_forms(form)}


# ---------------------------------------------------------------- what they cover


def test_the_stored_cases_are_those_of_the_tables(goldens: dict[str, FormGolden]) -> None:
    assert {golden.case.name: golden.case for golden in goldens.values()} == {case.name: case for case in FORM_CASES}
    assert {case.name for case in FORM_CASES}.isdisjoint(case.name for case in CASES)
    assert len({case.name for case in FORM_CASES}) == len(FORM_CASES)


def test_every_form_has_cases_in_every_dtype() -> None:
    counts = Counter((case.form, case.name.rsplit("-", 1)[1]) for case in FORM_CASES)
    assert {form for form, _ in counts} == set(FORMS) == set(HELD)
    stored = set(FORMS) - WITHOUT_DTYPE
    assert all(counts[form, dtype] for form in stored for dtype in ("float32", "bfloat16", "float16", "float64"))
    assert min(Counter(case.form for case in FORM_CASES).values()) >= 13


def test_the_dtype_in_a_name_is_that_of_the_tensors(goldens: dict[str, FormGolden]) -> None:
    for name, golden in goldens.items():
        if golden.case.form in WITHOUT_DTYPE:
            continue
        first = golden.inputs[golden.case.problem.leading or "alibi_slopes"]
        assert str(first.dtype) == f"torch.{name.rsplit('-', 1)[1]}"


@pytest.mark.parametrize("form", CITED)
def test_the_cases_of_a_form_cite_its_rules_and_no_other(form: str) -> None:
    assert {rule for case in FORM_CASES if case.form == form for rule in case.rules} == CITED[form]


def test_dropout_cites_its_rules() -> None:
    cited = {rule for case in FORM_CASES if case.form == "dropout" for rule in case.rules}
    own = {f"dropout.{name}" for name in ("one", "backward-mask", "inverted", "on-weights", "lse")}
    assert own | {"backward.dropout", "mask.fully-masked-row", "grouped.head-map"} <= cited <= all_rules().keys()


# ---------------------------------------------------------------- the truth, by other ways


def widens(name: str, x: torch.Tensor) -> bool:
    """Whether a tensor is one of numbers that a float64 call holds in float64."""
    return x.dtype.is_floating_point and x.element_size() > 1 and not name.endswith("_scale")


def widened(golden: FormGolden) -> FormGolden:
    """The same numbers in float64."""
    wide = {name: x.double() if widens(name, x) else x for name, x in golden.tensors.items()}
    return replace(golden, tensors=wide)


@pytest.mark.parametrize("name", [case.name for case in FORM_CASES])
def test_the_float64_reference_agrees_within_the_float64_budget(goldens: dict[str, FormGolden], name: str) -> None:
    wide = widened(goldens[name])
    budgets = HELD[wide.case.form].budgets(wide, "fused")
    found = by_reference(wide)
    assert found.keys() == wide.truth.keys()
    for tensor, right in wide.truth.items():
        compared = compare(found[tensor], right, budgets[tensor], FLOAT64)
        assert compared.holds, f"{tensor}: {compared.error_over_budget} budgets"


def test_equal_lse_give_the_mean_and_the_logarithm_of_the_count(goldens: dict[str, FormGolden]) -> None:
    golden = goldens["merge-equal-bfloat16"]
    torch.testing.assert_close(golden.truth["output"], golden.inputs["outputs"].double().mean(0), rtol=1e-15, atol=0)
    right = golden.inputs["lses"][0].double() + np.log(2)
    torch.testing.assert_close(golden.truth["lse"], right, rtol=1e-15, atol=0)


def test_a_gap_of_1000_leaves_the_largest_part(goldens: dict[str, FormGolden]) -> None:
    golden = goldens["merge-gap-1000-float64"]
    outputs, lses = golden.inputs["outputs"], golden.inputs["lses"]
    first = lses.argmax(0)
    assert torch.equal(golden.truth["lse"], lses.amax(0))
    assert torch.equal(
        golden.truth["output"], outputs.gather(0, first[None, ..., None].expand(1, *outputs.shape[1:]))[0]
    )


def test_parts_that_see_nothing_leave_0_and_minus_inf(goldens: dict[str, FormGolden]) -> None:
    golden = goldens["merge-all-empty-hold-numbers-bfloat16"]
    assert golden.inputs["outputs"].abs().min() > 1
    assert not golden.truth["output"].any()
    assert (golden.truth["lse"] == -torch.inf).all()


def test_a_row_that_no_head_sees_through_is_the_bias(goldens: dict[str, FormGolden]) -> None:
    golden = goldens["multi-head-empty-row-float32"]
    bias = golden.inputs["b_o"].double().expand(golden.truth["output"][:, 0].shape)
    assert torch.equal(golden.truth["output"][:, 0], bias)
    assert not golden.inputs["mask"][:, :, 0].any()
    assert not goldens["multi-head-empty-row-no-bias-float32"].truth["output"][:, 0].any()


def test_query_heads_of_a_group_share_the_columns_of_one_key_head(goldens: dict[str, FormGolden]) -> None:
    grouped = goldens["multi-head-grouped-float32"]
    repeated = {}
    for name, x in grouped.inputs.items():
        shared = name in ("w_k", "b_k", "w_v", "b_v")  # 2 heads of 4 columns, each for 3 query heads
        repeated[name] = x.unflatten(0, (2, 4)).repeat_interleave(3, 0).flatten(0, 1) if shared else x
    problem = problem_of("multi_head", str(grouped.case.problem).replace("kv_heads=2/", ""))
    assert problem.shapes()["w_k"] == ("float32", (24, 24))
    truth = problem.truth(repeated)["output"]
    assert truth.tolist() == grouped.truth["output"].tolist()


def test_an_added_mask_moves_scores_and_hides_at_minus_inf(goldens: dict[str, FormGolden]) -> None:
    golden = goldens["additive-bias-empty-row-float32"]
    mask, weights, lse = golden.inputs["attn_mask"].double(), golden.truth["weights"], golden.truth["lse"]
    assert torch.equal(weights == 0, mask == -torch.inf)
    assert (lse[:, :, 0] == -torch.inf).all()
    plain = problem_of("additive", str(golden.case.problem).replace("mask=bias_empty/", ""))
    unmasked = {name: x for name, x in golden.inputs.items() if name != "attn_mask"}
    bare = {name: torch.from_numpy(x) for name, x in plain.truth(unmasked).items()}
    scores = bare["weights"].log() + bare["lse"][..., None]
    torch.testing.assert_close((scores + mask)[:, :, 1:].softmax(-1), weights[:, :, 1:], rtol=1e-13, atol=1e-15)


def test_one_key_has_weight_1_in_additive_attention(goldens: dict[str, FormGolden]) -> None:
    golden = goldens["additive-one-key-float32"]
    assert torch.equal(golden.truth["weights"], torch.ones_like(golden.truth["weights"]))
    assert torch.equal(golden.truth["output"], golden.inputs["value"].double().expand(golden.truth["output"].shape))


def test_one_key_is_doubled_or_dropped_at_a_half(goldens: dict[str, FormGolden]) -> None:
    golden = goldens["dropout-one-key-float32"]
    right = torch.where(golden.inputs["keep"], 2 * golden.inputs["value"].double(), 0.0)
    assert torch.equal(golden.truth["output"], right)
    assert golden.inputs["keep"].any()
    assert not golden.inputs["keep"].all()


def test_all_dropped_leaves_the_lse_alone(goldens: dict[str, FormGolden]) -> None:
    for name in ("dropout-all-float32", "dropout-all-gradients-float32"):
        golden = goldens[name]
        query, key, value = (golden.inputs[tensor].numpy() for tensor in ("query", "key", "value"))
        np.testing.assert_array_equal(golden.truth["lse"].numpy(), exact_attention(query, key, value).lse)
        assert not any(x.any() for tensor, x in golden.truth.items() if tensor != "lse")


def test_gradients_are_those_of_autograd(goldens: dict[str, FormGolden]) -> None:
    golden = widened(goldens["dropout-gradients-causal-grouped-float32"])
    x = golden.inputs
    leaves = [x[name].clone().requires_grad_() for name in ("query", "key", "value")]
    options = {"is_causal": True, "enable_gqa": True, "dropout_p": 0.3, "keep": x["keep"]}
    output = attention(*leaves, **options).output
    for name, found in zip(
        ("query", "key", "value"), torch.autograd.grad(output, leaves, x["grad_output"]), strict=True
    ):
        torch.testing.assert_close(found, golden.truth[f"grad_{name}"], rtol=1e-13, atol=1e-14)


# ---------------------------------------------------------------- making, reading and comparing them


@pytest.mark.parametrize("name", SMALL)
def test_a_case_comes_out_the_same(name: str) -> None:
    files = make(form_case(name))
    assert files.case == (VECTORS / f"{name}.json").read_bytes()
    assert files.tensors == (VECTORS / f"{name}.safetensors").read_bytes()


def test_stored_inputs_are_those_of_their_problem(goldens: dict[str, FormGolden]) -> None:
    for golden in goldens.values():
        made = golden.case.problem.inputs()
        assert made.keys() == golden.inputs.keys()
        assert all(torch.equal(made[name], golden.inputs[name]) for name in made), golden.case.name


@pytest.mark.parametrize("case", FORM_CASES, ids=lambda case: case.name)
def test_a_problem_is_read_as_it_is_written(case: FormCase) -> None:
    assert problem_of(case.form, str(case.problem)) == case.problem


@pytest.mark.parametrize(
    ("form", "text", "told"),
    [
        ("softmax", "q=1", "unknown form 'softmax'"),
        ("merge", "parts=2/queries=3", "word 'queries=3'"),
        ("merge", "parts=2/parts=3", "stands twice"),
        ("merge", "parts=two", "no readable value"),
        ("merge", "q=5/parts=3", "is not written as"),
        ("merge", "empty=few", "empty is 'few'"),
        ("merge", "parts=9999", "parts is 9999: use 0 to 4096"),
        ("multi_head", "d_model=10/heads=4", "no multiple of heads"),
        ("multi_head", "d_model=12/heads=6/kv_heads=4", "heads 6 is no multiple of kv_heads 4"),
        ("multi_head", "q=2/k=3/same", "the same tokens have one length"),
        ("multi_head", "mask=some", "mask is 'some'"),
        ("additive", "mask=some", "mask is 'some'"),
        ("additive", "dtype=int8", "int8"),
        ("packed", "q=3.1/k=4", "use a number for each member"),
        ("packed", "q=3.x", "is no list of whole numbers"),
        ("packed", "q=3/k=4/lengths=5", "use 0 to the number of keys"),
        ("packed", "q=3/causal=both", "causal is 'both'"),
        ("packed", "q=3/window=1", "window is '1': use two numbers"),
        ("paged", "lengths=4/page=0", "page is 0"),
        ("paged", "lengths=4.5/queries=1", "use a number for each of 2 sequences"),
        ("paged", "lengths=4/shared=2", "shared is 2: use 1 at most"),
        ("paged", "lengths=4/unused=some", "unused is 'some'"),
        ("paged", "lengths=20/causal/twice", "twice goes with causal or shared: use it alone"),
        ("latent", "q=1/grad=both", "grad is 'both': use output or lse"),
        ("paged", "lengths=4/grad=key", "grad 'key': use one of"),
        ("dropout", "q=1/k=1/d=1", "use dropout"),
        ("dropout", "q=1/k=1/d=1/dropout=0.5/lengths=full", "without key lengths"),
    ],
)
def test_a_problem_that_no_case_has_is_told(form: str, text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        problem_of(form, text)


def test_the_two_kinds_of_case_are_loaded_apart() -> None:
    with pytest.raises(InputError, match="has form merge: use load_form"):
        load("merge-two-float32")
    with pytest.raises(InputError, match="has form attention: use load"):
        load_form("plain-one-by-one-float32")
    with pytest.raises(InputError, match="lists no case"):
        load_form("../secret")
    with pytest.raises(InputError, match="unknown case"):
        form_case("merge-nothing")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A set of a few small cases of several forms."""
    out = tmp_path / "vectors"
    regenerate(out, jobs=1, cases=[*map(form_case, SMALL), CASES[0]])
    return out


def test_a_small_set_of_several_forms_is_whole(folder: Path) -> None:
    assert check(folder) == len(SMALL) + 1
    assert diff(folder, folder) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("merge-gap-90-float32", "gap=90", "gap=80", "SHA-256"),
        ("manifest", '"form": "merge"', '"form": "additive"', "word 'gap=90'"),
        ("manifest", '"form": "merge"', '"form": "attention"', "schema 'case'"),
        ("manifest", '"form": "merge"', '"form": "softmax"', "softmax"),
    ],
)
def test_a_defect_of_a_form_is_told(folder: Path, name: str, old: str, new: str, told: str) -> None:
    path = folder / f"{name}.json"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError, match=told):
        check(folder)


def test_a_difference_of_a_form_is_told(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    changed = replace(form_case(SMALL[0]), problem=problem_of("merge", "h=2/q=5/gap=90/seed=621"))
    regenerate(other, jobs=1, cases=[changed, *map(form_case, SMALL[1:]), CASES[0]])
    lines = diff(folder, other)
    assert lines[0] == f"{SMALL[0]}: problem {form_case(SMALL[0]).problem} and {changed.problem}"
    assert any(line.startswith(f"{SMALL[0]}: lses: ") for line in lines)
