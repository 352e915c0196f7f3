"""The golden cases of latent attention, of slopes and biases of the position and masks of documents: values worked out
by hand, and laws between cases."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnspec.conformance.forms.hold import FORMS, hold
from attnspec.golden.forms.latent import LatentProblem
from attnspec.golden.forms.relative_bias import RelativeBiasProblem
from attnspec.golden.store import load_form
from attnspec.reference.exact import attention
from attnspec.reference.latent import latent_attention
from attnspec.reference.relative_bias import relative_bias


def exact_problem(**words: Any) -> LatentProblem:
    """A problem of latent attention whose inputs have few bits, so that float64 holds its keys and values exactly."""
    return LatentProblem(dtype="bfloat16", b=1, h=2, q=3, k=5, nope=3, rope=2, rank=4, dv=3, seed=7, **words)


def test_the_truth_of_latent_attention_is_exact_attention_with_the_keys_of_each_head() -> None:
    problem = exact_problem(causal="lower_right")
    inputs = {name: x.double() for name, x in problem.inputs().items()}
    key = torch.einsum("bkr,hnr->bhkn", inputs["latent"], inputs["w_uk"])
    key = torch.cat([key, inputs["key_rope"][:, None].expand(-1, 2, -1, -1)], -1)
    value = torch.einsum("bkr,hvr->bhkv", inputs["latent"], inputs["w_uv"])
    query = inputs["query"].numpy()
    found = problem.truth(problem.inputs())
    right = attention(query, key.numpy(), value.numpy(), is_causal=True, causal_alignment="lower_right")
    assert (found["output"] == right.output).all()
    assert (found["lse"] == right.lse).all()


def test_a_decode_step_has_the_truth_of_its_tokens_alone() -> None:
    golden = load_form("latent-decode-float32")
    x, lengths = golden.inputs, golden.inputs["key_lengths"].tolist()
    assert min(lengths) < max(lengths) == 17
    for b, length in enumerate(lengths):
        one = slice(b, b + 1)
        cache = (x[name][one, :length] for name in ("latent", "key_rope"))
        alone = latent_attention(x["query"][one], *cache, x["w_uk"], x["w_uv"])
        torch.testing.assert_close(golden.truth["output"][b], alone.output[0], rtol=1e-12, atol=1e-14)


def test_an_empty_cache_gives_0_and_minus_inf() -> None:
    golden = load_form("latent-empty-cache-float32")
    assert golden.inputs["key_lengths"][0] == 0
    assert not golden.truth["output"][0].any()
    assert (golden.truth["lse"][0] == -torch.inf).all()
    assert golden.truth["lse"][1:].isfinite().all()


def test_slopes_by_hand() -> None:
    def slopes(heads: int) -> list[float]:
        return load_form(f"alibi-slopes-of-{heads}").truth["slopes"].tolist()

    assert slopes(1) == [2.0**-8]
    assert slopes(4) == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]
    assert slopes(6) == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]
    assert slopes(12)[8:] == slopes(16)[0:8:2]
    assert slopes(12)[8] == 2.0**-0.5


def test_biases_by_hand() -> None:
    def of_head_0(name: str) -> list[list[float]]:
        golden = load_form(f"alibi-bias-{name}")
        return (golden.truth["bias"][0, 0] / golden.inputs["alibi_slopes"][0].double()).tolist()

    assert of_head_0("tall-float32")[:3] == [[0, -1, -2], [-1, 0, -1], [-2, -1, 0]]
    assert of_head_0("tall-lower-right-float32")[-2:] == [[-1, 0, -1], [-2, -1, 0]]
    assert of_head_0("tall-lower-right-signed-float32")[0] == [5, 6, 7]
    assert of_head_0("wide-lower-right-signed-float32")[0] == [-5, -4, -3, -2, -1, 0, 1, 2]


def test_the_last_row_of_one_call_is_a_decode_step_of_t5() -> None:
    golden = load_form("relative-bias-decode-float32")
    table = golden.inputs["table"].double()
    bias = golden.truth["bias"][0, :, 0]  # (heads, k_len)
    assert torch.equal(bias[:, -1], table[0])
    assert torch.equal(bias[:, -16], table[15])
    assert torch.equal(bias[:, 0], table[31])


def test_the_gradient_of_a_table_is_summed_over_the_slots_and_rounded_once() -> None:
    problem = RelativeBiasProblem.parse("q=1/k=3/buckets=2/max_distance=2/causal/grad/dtype=float64")
    inputs = problem.inputs()
    inputs["grad_bias"] = torch.tensor([1.0, 2.0**-53, 2.0**-53], dtype=torch.float64).view(1, 1, 1, 3)
    assert problem.truth(inputs)["grad_table"].ravel().tolist() == [1 + 2.0**-52, 0]  # keys 1 and 2 are beyond row 0


def test_an_entry_that_no_slot_reads_has_gradient_0_and_no_budget() -> None:
    golden = load_form("relative-bias-gradient-unread-float32")  # q=4/k=5/buckets=16: distances -3 to 4
    read = torch.zeros(16, dtype=torch.bool)
    read[[0, 1, 2, 3, 9, 10, 11, 12]] = True
    budget = FORMS["relative_bias"].budgets(golden, "fused")["grad_table"]
    assert golden.truth["grad_table"][read].all()
    assert not golden.truth["grad_table"][~read].any()
    assert not budget[~read].any()


def test_a_bias_without_a_gradient_is_not_held_to_those_cases() -> None:
    def constant(table: torch.Tensor, q_len: int, k_len: int, **options: Any) -> torch.Tensor:
        return relative_bias(table, q_len, k_len, **options).detach()

    (held,) = hold(constant, "relative_bias", names=("relative-bias-gradient-float32",))
    assert (held.outcome, held.what) == ("not_supported", "no gradient comes back: bias has no grad_fn")


def visible(name: str) -> list[str]:
    """The mask of the first batch element, a string a row."""
    return ["".join(str(int(x)) for x in row) for row in load_form(name).truth["visible"][0, 0].tolist()]


def test_masks_by_hand() -> None:
    assert visible("document-mask-one-document-causal")[:3] == ["1000000", "1100000", "1110000"]
    assert visible("document-mask-tokens-alone")[:2] == ["1000000", "0100000"]
    assert set(visible("document-mask-nothing-but-padding")) == {"00000"}
    assert visible("prefix-lm-one")[0] == "100000"
    assert set(visible("prefix-lm-full")) == {"111111"}
    assert visible("prefix-lm-zero") == [("1" * (i + 1)).ljust(6, "0") for i in range(6)]
    assert visible("prefix-lm-tall-zero-lower-right")[:6] == ["0000"] * 5 + ["1000"]


@pytest.mark.parametrize("name", ["document-mask-mixed", "document-mask-paddings", "document-mask-falling"])
def test_a_layout_shows_what_it_is_there_for(name: str) -> None:
    documents = load_form(name).inputs["key_documents"][0].tolist()
    assert len({document for document in documents if document >= 0}) > 1
    if name == "document-mask-falling":
        assert documents == sorted(documents, reverse=True)
    else:
        assert documents not in (sorted(documents), sorted(documents, reverse=True))
    if name == "document-mask-paddings":
        assert {-1, -2} <= set(documents)


def test_a_bias_of_the_right_numbers_in_another_dtype_fails_and_one_that_broadcasts_passes() -> None:
    def table_in(dtype: torch.dtype) -> Any:
        def bias(table: torch.Tensor, q_len: int, k_len: int, **options: Any) -> torch.Tensor:
            return relative_bias(table, q_len, k_len, **options)[0].to(dtype)

        return bias

    name = ("relative-bias-square-bfloat16",)
    assert [held.outcome for held in hold(table_in(torch.bfloat16), "relative_bias", names=name)] == ["pass"]
    (held,) = hold(table_in(torch.float32), "relative_bias", names=name)
    assert (held.outcome, held.what) == (
        "fail",
        "bias is torch.float32 (1, 2, 9, 9) on cpu, should be torch.bfloat16 (1, 2, 9, 9) on cpu",
    )


def test_what_is_no_mask_and_what_is_no_bucket_fails() -> None:
    (held,) = hold(lambda q, k: torch.zeros(1), "document_mask", names=("document-mask-wide",))
    assert held.what == "torch.float32 came back: use one that is bool"
    (held,) = hold(lambda q, k: torch.zeros(3, 3, dtype=torch.bool), "document_mask", names=("document-mask-wide",))
    assert held.what == "shape (3, 3) came back: use one that broadcasts to (2, 1, 5, 12)"
    (held,) = hold(lambda distance, **_: distance.double(), "relative_bucket", names=("relative-bucket-t5",))
    assert held.what == "torch.float64 came back: use one that is integer"
