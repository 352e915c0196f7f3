"""The calls that a target of a form must refuse: what counts as a refusal, what does not, and how they are told."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from packs import paged as reference

from attnspec.conformance.forms.hold import FORMS, REFUSALS, Held, hold, statement
from attnspec.conformance.forms.refusals import Arguments, sound_call
from attnspec.golden.forms import FORM_CASES
from attnspec.golden.store import load_form
from attnspec.spec.errors import InputError
from attnspec.spec.rules import all_rules

HONEST = Path(__file__).parent / "honest" / "forms"
ROPE, PACKED = (runpy.run_path(str(HONEST / f"{name}.py"))["target"] for name in ("rope", "packed"))


def one(target: Any, form: str, name: str) -> Held:
    """What came of one refusal."""
    (held,) = hold(target, form, names=(name,))
    return held


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_makes_one_thing_wrong_in_a_stored_case_of_its_form(name: str) -> None:
    form, refusal = REFUSALS[name]
    name_of_target = "latent_expanded" if form == "latent" else form
    target = runpy.run_path(str(HONEST / f"{name_of_target}.py"))["target"]
    assert load_form(refusal.case).case.form == form
    assert refusal.rule in all_rules()
    sound = sound_call(target, refusal.case, FORMS[form].run)
    changed = refusal.change(sound)
    assert changed
    assert not any(place in sound and same(sound[place], argument) for place, argument in changed.items())


def same(a: Any, b: Any) -> bool:
    """Whether two arguments are one value."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def test_names_of_refusals_are_unique_and_unlike_those_of_cases() -> None:
    assert len(REFUSALS) == sum(len(form.refusals) for form in FORMS.values())
    assert REFUSALS.keys().isdisjoint(case.name for case in FORM_CASES)


def test_a_wrong_call_that_is_answered_fails_its_rule() -> None:
    def lenient(query: Any, key: Any, value: Any, cu_seqlens_q: Any, *rest: Any, **options: Any) -> Any:
        return PACKED(query, key, value, cu_seqlens_q.int(), *rest, **options)

    held = one(lenient, "packed", "packed-refuses-float-boundaries")
    assert (held.outcome, held.rule) == ("fail", "packed.boundaries")
    assert held.what.startswith("cu_seqlens_q is float32, and a tuple of 2")
    assert statement([held]) == ("not conformant: 1 of 1 cases fail, against packed.boundaries", 1)


@pytest.mark.parametrize("error", [ValueError("never"), NotImplementedError("never")])
@pytest.mark.parametrize("form", [name for name, form in FORMS.items() if form.refusals])
def test_refusing_everything_is_no_pass(form: str, error: Exception) -> None:
    def refuses(*given: Any, **options: Any) -> Any:
        raise error

    results = [one(refuses, form, refusal.name) for refusal in FORMS[form].refusals]
    assert {held.outcome for held in results} == {"not_supported"}
    assert statement(results)[1] == 2
    assert results[0].what.startswith(f"the sound call of {FORMS[form].refusals[0].case} gives no result: ")


def test_any_exception_is_a_refusal() -> None:
    def strict(x: torch.Tensor, positions: torch.Tensor, base: float = 10000.0) -> Any:
        if not 0 < base < float("inf"):
            raise NotImplementedError("later")
        return ROPE(x, positions, base=base)

    assert one(strict, "rope", "rope-refuses-base-0").outcome == "pass"


def test_a_word_that_the_signature_lacks_is_no_refusal() -> None:
    held = one(lambda x, positions: ROPE(x, positions), "rope", "rope-refuses-base-0")
    assert (held.outcome, held.what) == ("not_supported", "the signature has no base")


def test_the_wrong_call_has_the_other_arguments_of_the_sound_one() -> None:
    calls: list[Arguments] = []

    def seen(*given: Any, **options: Any) -> Any:
        calls.append({**dict(enumerate(given)), **options})
        return reference(*given, **options)

    assert one(seen, "paged", "paged-refuses-negative-length").outcome == "pass"
    sound, wrong = calls
    assert sound.keys() == wrong.keys()
    assert [place for place in sound if not same(sound[place], wrong[place])] == [4]
    assert (sound[4].tolist(), wrong[4].tolist()) == ([20, 5, 33], [20, -1, 33])


def test_a_refusal_of_another_form_is_told() -> None:
    with pytest.raises(InputError, match="case 'paged-refuses-page-of-0' has form paged: leave it out"):
        list(hold(PACKED, "packed", names=("paged-refuses-page-of-0",)))


def test_refusals_and_cases_are_chosen_by_name_and_counted() -> None:
    results = list(hold(ROPE, "rope", names=("rope-refuses-base-0", "rope-one-pair-float32")))
    assert statement(results) == ("2 of 2 cases pass", 0)


def test_refusals_are_held_listed_and_shown_on_the_command_line(attnspec: Callable[..., Any]) -> None:
    target, name = f"{HONEST / 'rope.py'}:target", "rope-refuses-base-0"
    done = attnspec("golden", "hold", target, "--form", "rope")
    count = sum(case.form == "rope" for case in FORM_CASES) + len(FORMS["rope"].refusals)
    assert (done.returncode, done.stdout) == (0, f"{target}: {count} of {count} cases pass\n")
    assert f"{name}  rope  refused: base is 0" in attnspec("golden", "list", "--form", "rope").stdout
    shown = attnspec("show", name).stdout
    assert "A call that must be refused: base is 0." in shown
    assert f"attnspec golden hold TARGET --form rope --case {name}" in shown
    assert "golden hold --form rope" in attnspec("show", "rope.shape").stdout
