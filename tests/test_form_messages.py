"""What `golden hold` says of a wrong result, of a gradient that does not come back, and of a call that is answered."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnspec.conformance.forms.hold import hold_case
from attnspec.golden.store import load_form

FORMS_FOLDER = Path(__file__).parent / "honest" / "forms"


def honest(name: str) -> Any:
    """The target of an honest form."""
    return runpy.run_path(str(FORMS_FOLDER / f"{name}.py"))["target"]


@pytest.mark.parametrize(
    ("form", "case", "name", "spoil"),
    [
        ("quantise", "quantise-int8-float32", "output", lambda stored: stored.clamp(max=0)),
        ("relative_bucket", "relative-bucket-t5", "buckets", lambda buckets: buckets + 1),
        ("document_mask", "document-mask-packed", "visible", torch.logical_not),
    ],
)
def test_a_result_without_a_budget_is_told_that_it_must_be_exact(
    form: str, case: str, name: str, spoil: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    target = honest(form)
    held = hold_case(lambda *given, **options: spoil(target(*given, **options)), load_form(case))
    assert (held.outcome, held.what) == ("fail", f"{name} must be exact, and is not")


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda output, lse: output, "there is no lse"),
        (lambda output, lse: (output, lse.detach()), "lse has no grad_fn"),
        (lambda output, lse: (output.detach(), lse), "output has no grad_fn"),
        (lambda output, lse: (output.detach(), lse.detach()), "output has no grad_fn and lse has no grad_fn"),
    ],
)
def test_the_result_without_a_gradient_is_named(returned: Callable[..., Any], words: str) -> None:
    target = honest("packed")
    held = hold_case(lambda *x: returned(*target(*x)), load_form("packed-gradients-lse-float32"))
    assert (held.outcome, held.what) == ("not_supported", f"no gradient comes back: {words}")


def test_a_call_that_is_answered_has_no_empty_line(attnspec: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "answers.py").write_text("def target(x, scale, dtype):\n    return x.to(dtype)\n")
    name = "quantise-refuses-scale-of-channels"
    done = attnspec("golden", "hold", "answers.py:target", "--form", "quantise", "--case", name)
    assert (done.returncode, f"FAIL {name}\n" in done.stdout) == (1, True)
    assert not [line for line in done.stdout.splitlines() if line.strip() in ("", "exercises")]
