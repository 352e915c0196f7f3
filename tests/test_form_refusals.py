"""The calls that a target of a form must refuse: what counts as a refusal, and what does not."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnspec.conformance.forms.hold import hold, statement
from attnspec.conformance.forms.refusals import changed
from attnspec.golden.forms import FORM_CASES, FORMS, REFUSALS
from attnspec.golden.forms.form import Refusal
from attnspec.golden.store import load_form
from attnspec.reference.latent import latent_attention
from attnspec.spec.errors import InputError
from attnspec.spec.rules import all_rules

ALL = [pytest.param(form, refusal, id=refusal.name) for form, found in REFUSALS.items() for refusal in found]
HONEST = Path(__file__).parent / "honest" / "forms" / "latent_expanded.py"
NAME = "latent-refuses-w-uk-of-one-head"


def reference(query: torch.Tensor, *rest: torch.Tensor, **options: Any) -> torch.Tensor:
    """Latent attention of the reference, stored in the dtype of the query."""
    return latent_attention(query, *rest, **options).output.to(query.dtype)


@pytest.mark.parametrize(("form", "refusal"), ALL)
def test_a_refusal_changes_a_stored_case_of_its_form(form: str, refusal: Refusal) -> None:
    cases = {case.name: case for case in FORM_CASES}
    sound, found = load_form(refusal.case), changed(refusal)
    assert cases[refusal.case].form == form
    assert refusal.name not in cases
    assert refusal.rule in all_rules()
    same = [torch.equal(x, sound.inputs[name]) for name, x in found.inputs.items() if name in sound.inputs]
    assert not all(same) or found.case.problem != sound.case.problem or found.inputs.keys() != sound.inputs.keys()


def test_names_of_refusals_are_unique() -> None:
    names = [refusal.name for found in REFUSALS.values() for refusal in found]
    assert len(names) == len(set(names))
    assert set(REFUSALS) == set(FORMS)


def test_the_reference_refuses_by_an_input_error() -> None:
    raised: list[Exception] = []

    def watched(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
        try:
            return reference(*tensors, **options)
        except InputError as error:
            raised.append(error)
            raise

    names = tuple(refusal.name for refusal in REFUSALS["latent"])
    results = list(hold(watched, "latent", names=names))
    assert [held.outcome for held in results] == ["pass"] * len(names)
    assert len(raised) == len(names)


def test_an_answer_where_a_refusal_is_right_fails() -> None:
    target = runpy.run_path(str(HONEST))["target"]

    def expands(query: Any, latent: Any, key_rope: Any, w_uk: Any, w_uv: Any) -> Any:
        heads = query.shape[1]
        return target(query, latent, key_rope, w_uk.expand(heads, -1, -1), w_uv)

    (held,) = hold(expands, "latent", names=(NAME,))
    assert (held.outcome, held.rule) == ("fail", "latent.shape")
    assert held.what == "a call that must be refused was answered: w_uk has one head, the query three"
    assert statement([held]) == ("not conformant: 1 of 1 cases fail, against latent.shape", 1)


@pytest.mark.parametrize("error", [RuntimeError("always"), NotImplementedError("always")])
def test_what_refuses_every_call_shows_nothing(error: Exception) -> None:
    def broken(query: Any, *rest: Any) -> Any:
        raise error

    (held,) = hold(broken, "latent", names=(NAME,))
    assert held.outcome == "not_supported"
    assert held.what.startswith("the sound call, latent-plain-float32, is not answered")


def test_a_word_that_the_signature_lacks_is_no_refusal() -> None:
    def without_lengths(query: Any, latent: Any, key_rope: Any, w_uk: Any, w_uv: Any) -> Any:
        return reference(query, latent, key_rope, w_uk, w_uv)

    (held,) = hold(without_lengths, "latent", names=("latent-refuses-a-length-beyond-the-cache",))
    assert held.outcome == "not_supported"


def test_a_name_of_another_form_is_told() -> None:
    with pytest.raises(InputError, match="lists no case"):
        list(hold(lambda *_: None, "merge", names=(NAME,)))


def test_a_refusal_is_shown(attnspec: Callable[..., Any]) -> None:
    shown = attnspec("show", NAME)
    assert shown.returncode == 0
    assert "a call that must be refused: w_uk has one head, the query three" in shown.stdout
    done = attnspec("golden", "hold", f"{HONEST}:target", "--form", "latent", "--case", NAME)
    assert (done.returncode, done.stdout) == (0, f"{HONEST}:target: 1 of 1 cases pass\n")
