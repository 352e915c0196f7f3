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
