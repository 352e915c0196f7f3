"""Holding targets to the vectors of a form: the project's own, torch's, the command line, and what is refused."""

from __future__ import annotations

import json
import runpy
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnspec.conformance.forms.hold import Held, hold, hold_case, statement
from attnspec.conformance.forms.multi_head import parameters
from attnspec.conformance.forms.target import accepts
from attnspec.golden.store import load_form, load_forms
from attnspec.implementations.torch_eager import TorchEager
from attnspec.reference.additive import additive_attention
from attnspec.reference.merge import Part, merge
from attnspec.reference.multi_head import MultiHeadAttention
from attnspec.reference.multi_head_torch import from_torch, mask_from_torch
from attnspec.spec.errors import InputError

FORMS_FOLDER = Path(__file__).parent / "honest" / "forms"
MODULE = FORMS_FOLDER / "multi_head.py"
LATENT = runpy.run_path(str(FORMS_FOLDER / "latent_expanded.py"))["target"]
TORCH = runpy.run_path(str(FORMS_FOLDER / "torch_module.py"))
ARTICLE = """
import math
import torch

class MultiHeadAttention(torch.nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        self.d_k, self.num_heads = d_model // num_heads, num_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (torch.nn.Linear(d_model, d_model) for _ in range(4))
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, q, k, v, mask=None):
        def heads(x):
            return x.view(x.shape[0], -1, self.num_heads, self.d_k).transpose(1, 2)
        scores = heads(self.w_q(q)) @ heads(self.w_k(k)).transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = self.dropout(torch.softmax(scores, dim=-1))
        output = (weights @ heads(self.w_v(v))).transpose(1, 2).contiguous().view(q.shape[0], -1, q.shape[-1])
        return self.w_o(output), weights
"""


def failed(results: list[Held]) -> list[tuple[str, str]]:
    return [(held.case, held.what) for held in results if held.outcome == "fail"]


def passed(results: list[Held]) -> int:
    return sum(held.outcome == "pass" for held in results)


# ---------------------------------------------------------------- the project's own, and torch's


def test_the_reference_module_passes_every_case() -> None:
    results = list(hold(MultiHeadAttention, "multi_head"))
    assert (failed(results), passed(results)) == ([], 33)


def test_the_module_translated_from_torch_passes_what_torch_can_hold() -> None:
    held = []
    for golden in load_forms("multi_head"):
        state, x, heads = parameters(golden.inputs), golden.inputs, golden.case.problem.heads  # type: ignore[attr-defined]
        if {len(state[f"w_{layer}.weight"]) for layer in "qkv"} != {x["query"].shape[-1]}:
            continue
        width, bias = x["query"].shape[-1], "w_q.bias" in state
        dims = {"kdim": x["key"].shape[-1], "vdim": x["value"].shape[-1]}
        theirs = torch.nn.MultiheadAttention(width, heads, bias=bias, **dims, dtype=x["query"].dtype)
        with torch.no_grad():
            TORCH["load"](theirs, state, bias)
        module = from_torch(theirs).eval()
        mask = x.get("mask")
        if mask is not None:
            shape = (x["query"].shape[0], heads, x["query"].shape[1], x["key"].shape[1])
            dropped = (mask == 0).expand(shape).reshape(-1, *shape[2:])
            mask = mask_from_torch(heads, attn_mask=dropped)

        def translated(q: Any, k: Any, v: Any, given: Any, module: Any = module, mask: Any = mask, **_: Any) -> Any:
            return module(q, k, v, mask)

        held.append(hold_case(lambda q, k, v, m, *, parameters, num_heads, call=translated: call(q, k, v, m), golden))
    assert (failed(held), passed(held)) == ([], 23)


def test_torch_gives_nan_for_an_empty_row_where_it_returns_weights() -> None:
    golden = load_form("multi-head-empty-row-float32")
    state, x = parameters(golden.inputs), golden.inputs

    def weighted(q: Any, k: Any, v: Any, mask: Any, *, parameters: Any, num_heads: int) -> Any:
        module = torch.nn.MultiheadAttention(q.shape[-1], num_heads, batch_first=True)
        TORCH["load"](module, state, True)
        dropped = (mask == 0).expand(-1, num_heads, -1, -1).reshape(-1, q.shape[1], k.shape[1])
        return module.eval()(q, k, v, attn_mask=dropped)

    held = hold_case(weighted, golden)
    assert (held.outcome, held.rule) == ("fail", "multi-head.empty-row")
    assert held.what == "output holds NaN where a number is right"
    assert not x["mask"][:, :, 0].any()


def test_the_article_module_fails_where_a_row_sees_nothing_and_where_float16_has_no_such_number(tmp_path: Path) -> None:
    path = tmp_path / "article.py"
    path.write_text(ARTICLE)
    results = list(hold(runpy.run_path(str(path))["MultiHeadAttention"], "multi_head", "eager"))
    told = dict(failed(results))
    assert "Half without overflow" in told.pop("multi-head-causal-float16")
    refused = {held.case for held in results if held.outcome == "not_supported"}
    assert told.keys() == {
        "multi-head-empty-row-float32",
        "multi-head-empty-row-int-float64",
        "multi-head-empty-row-bfloat16",
        "multi-head-mask-of-heads-float32",
    }
    named = ("no-bias", "-d-", "dims", "grouped", "multi-query")
    assert all(any(word in case for word in named) for case in refused)
    assert len(refused) == 14


def test_the_reference_merge_and_additive_attention_pass_every_case() -> None:
    def merged(outputs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = merge([Part(*part) for part in zip(outputs, lses, strict=True)])
        return found.output.to(outputs.dtype), found.lse.to(lses.dtype)

    def additive(query: torch.Tensor, *rest: torch.Tensor, **options: Any) -> torch.Tensor:
        return additive_attention(query, *rest, **options).output.to(query.dtype)

    for target, form, count in ((merged, "merge", 22), (additive, "additive", 28)):
        results = list(hold(target, form))
        assert (failed(results), passed(results)) == ([], count)


def test_the_dropout_of_torch_eager_passes_with_the_mask_as_its_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(query: Any, key: Any, value: Any, *, keep: Any, dropout_p: float, **options: Any) -> Any:
        draws = torch.where(keep, 1 - 2.0**-53, 0.0)  # what torch.rand would give
        monkeypatch.setattr(torch, "rand", lambda *shape, **_: draws.double())
        return TorchEager()(query, key, value, dropout_p=dropout_p, return_lse=True, **options)

    results = list(hold(drawn, "dropout", "eager"))
    assert (failed(results), passed(results)) == ([], 23)


# ---------------------------------------------------------------- what is told and refused


def test_a_result_of_another_dtype_or_shape_fails() -> None:
    golden = load_form("merge-four-bfloat16")
    for change, told in ((lambda x: x.float(), "torch.float32 (1, 2, 9, 24)"), (lambda x: x[..., :3], "(1, 2, 9, 3)")):
        held = hold_case(lambda o, z, change=change: (change(o[0]), z[0]), golden)
        assert held.outcome == "fail"
        assert told in held.what


@pytest.mark.parametrize(
    ("returned", "told"),
    [(None, "a value of type NoneType came back"), ((1, 2), "a tuple of 2"), (torch.zeros(1), "not (output, lse)")],
)
def test_something_else_than_tensors_fails(returned: Any, told: str) -> None:
    held = hold_case(lambda o, z: returned, load_form("merge-two-float32"))
    assert held.outcome == "fail"
    assert told in held.what


def test_an_exception_fails_and_a_refusal_is_no_pass() -> None:
    def broken(outputs: Any, lses: Any) -> Any:
        raise RuntimeError("out of order")

    def refuses(outputs: Any, lses: Any) -> Any:
        raise NotImplementedError("later")

    results = list(hold(broken, "merge"))
    assert {held.what for held in results} == {"raised RuntimeError: out of order"}
    assert statement(results)[1] == 1
    refused = list(hold(refuses, "merge"))
    assert {held.outcome for held in refused} == {"not_supported"}
    assert statement(refused) == ("not judged: the target supports none of the cases", 2)


def test_a_word_that_the_signature_lacks_is_not_supported() -> None:
    golden = load_form("dropout-causal-float32")
    held = hold_case(lambda query, key, value, *, keep, dropout_p: query, golden)
    assert (held.outcome, held.what) == ("not_supported", "the signature has no is_causal")
    assert accepts(lambda **options: None, "anything")
    assert not accepts(lambda x, /: None, "x")


def test_a_state_of_other_names_is_an_input_error() -> None:
    class Module(torch.nn.Module):
        def __init__(self, d_model: int, num_heads: int, bias: bool = True) -> None:
            super().__init__()
            self.to_queries = torch.nn.Linear(d_model, d_model)

    with pytest.raises(InputError, match=r"has to_queries.weight, to_queries.bias: use w_q.weight"):
        list(hold(Module, "multi_head", names=("multi-head-self-float32",)))

    class Bare(torch.nn.Module):
        def __init__(self, d_model: int, num_heads: int) -> None:
            super().__init__()

    with pytest.raises(InputError, match=r"the state of Bare has no parameters: use w_q.weight"):
        list(hold(Bare, "multi_head", names=("multi-head-self-float32",)))


def test_dropout_without_a_gradient_is_not_supported() -> None:
    golden = load_form("dropout-gradients-float32")
    held = hold_case(lambda query, key, value, *, keep, dropout_p: query.detach(), golden)
    assert (held.outcome, held.what) == ("not_supported", "no gradient comes back: output has no grad_fn")


@pytest.mark.parametrize(
    ("form", "accuracy", "names", "told"),
    [
        ("softmax", "fused", (), "unknown form 'softmax'"),
        ("merge", "exact", (), "accuracy is 'exact'"),
        ("merge", "fused", ("additive-plain-float32",), "has form additive: leave it out"),
        ("merge", "fused", ("nothing",), "unknown case 'nothing': see `attnspec golden list --form merge`$"),
        ("merge", "fused", ("merge-two-float3",), "list --form merge`; did you mean 'merge-two-float32'"),
        ("merg", "fused", (), "; did you mean 'merge'"),
    ],
)
def test_bad_words_are_told(form: str, accuracy: str, names: tuple[str, ...], told: str) -> None:
    with pytest.raises(InputError, match=told):
        list(hold(lambda *_: None, form, accuracy, names))


# ---------------------------------------------------------------- the command line


def test_hold_on_the_command_line(attnspec: Callable[..., Any], tmp_path: Path) -> None:
    done = attnspec("golden", "hold", f"{MODULE}:target", "--form", "multi_head")
    assert (done.returncode, done.stdout) == (0, f"{MODULE}:target: 33 of 33 cases pass\n")
    path = tmp_path / "article.py"
    path.write_text(ARTICLE)
    options = ("--form", "multi_head", "--accuracy", "eager")
    done = attnspec("golden", "hold", f"{path}:MultiHeadAttention", *options)
    assert done.returncode == 1
    assert (
        "FAIL multi-head-empty-row-float32\n  rule       multi-head.empty-row (MUST, chapter multi-head)" in done.stdout
    )
    assert "SKIP multi-head-d-v-larger-float32: the signature has no d_k, d_v" in done.stdout
    again = (
        f"golden hold {path}:MultiHeadAttention --form multi_head --case multi-head-empty-row-float32 --accuracy eager"
    )
    assert f"  rerun      attnspec {again}\n" in done.stdout
    assert attnspec(*again.split()).returncode == 1
    told = json.loads(attnspec(*again.split(), "--json").stdout)
    assert [(case["case"], case["outcome"]) for case in told["cases"]] == [("multi-head-empty-row-float32", "fail")]


def test_the_command_that_shows_a_failure_again_can_be_pasted(attnspec: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "my kernels").mkdir()
    (tmp_path / "my kernels" / "merge.py").write_text("def merge(outputs, lses):\n    return outputs[0], lses[0]\n")
    words = ("golden", "hold", "my kernels/merge.py:merge", "--form", "merge", "--case", "merge-two-float32")
    done = attnspec(*words)
    assert done.returncode == 1
    again = done.stdout.partition("  rerun      attnspec ")[2].partition("\n")[0]
    assert shlex.split(again) == list(words)


def test_cases_are_listed_and_shown(attnspec: Callable[..., Any]) -> None:
    lines = attnspec("golden", "list", "--form", "merge").stdout.splitlines()
    assert len(lines) == 22
    assert lines[0].split() == ["merge-two-float32", "merge", "q=5/seed=600"]
    shown = attnspec("show", "merge-gap-90-float32").stdout
    assert "golden hold TARGET --form merge --case merge-gap-90-float32" in shown
    for words, meant in (
        (("show", "merge-gap-9-float32"), "merge-gap-90-float32"),
        (("show", "mask.bol"), "mask.bool"),
    ):
        told = attnspec(*words)
        assert (told.returncode, told.stderr.endswith(f"; did you mean {meant!r}?\n")) == (2, True)
    assert attnspec("golden", "list", "--form", "softmax").returncode == 2
    assert "golden hold --form multi_head" in attnspec("show", "multi-head.split").stdout


# ---------------------------------------------------------------- the law of latent attention


@pytest.mark.parametrize(
    ("returns", "told"),
    [
        (lambda x, c, output, lse: (output + 0 * c.sum(), lse), "output changes with nan in tokens that do not exist"),
        (
            lambda x, c, output, lse: (output, lse + (c == torch.inf).sum()),
            "lse changes with inf in tokens that do not",
        ),
        (lambda x, c, output, lse: (output + (x - x.detach()).sum() * c.sum(), lse), "output changes with nan"),
        (lambda x, c, output, lse: (output + 0 * torch.linalg.svdvals(c).sum(), lse), "with nan in tokens that do not"),
    ],
)
def test_what_an_absent_token_holds_is_found_by_nan_or_an_infinity(returns: Callable[..., Any], told: str) -> None:
    """No number shows it, since the fault is 0 for every one."""

    def target(query: torch.Tensor, latent: torch.Tensor, *rest: Any, **options: Any) -> Any:
        return returns(query, latent, *LATENT(query, latent, *rest, **options))

    held = hold_case(target, load_form("latent-decode-float32"))
    assert (held.outcome, held.rule) == ("fail", "key-lengths.absent")
    assert held.what.startswith(told)


def test_absent_tokens_are_those_beyond_the_lengths_alone() -> None:
    golden, seen = load_form("latent-gradients-empty-cache-float32"), []

    def target(query: torch.Tensor, latent: torch.Tensor, key_rope: torch.Tensor, *rest: Any, **options: Any) -> Any:
        seen.append((latent.detach(), key_rope.detach()))
        return LATENT(query, latent, key_rope, *rest, **options)

    assert hold_case(target, golden).outcome == "pass"
    absent = torch.arange(7) >= golden.inputs["key_lengths"][:, None]
    assert [len(seen), absent[0].all(), absent[-1].any()] == [3, True, False]
    for tensors, holds in zip(seen[1:], (torch.isnan, torch.isinf), strict=True):
        for tensor, name in zip(tensors, ("latent", "key_rope"), strict=True):
            assert holds(tensor[absent]).all()
            assert torch.equal(tensor[~absent], golden.inputs[name][~absent])
