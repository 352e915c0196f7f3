"""A backward pass that raises is told under the rule of its form's gradients."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from attnspec.conformance.forms.hold import hold_case
from attnspec.golden.store import load_form

FORMS_FOLDER = Path(__file__).parent / "honest" / "forms"

CASES = {  # file in tests/honest/forms: a case with gradients, the rule that they break
    "dropout": ("dropout-gradients-causal-grouped-float32", "dropout.backward-mask"),
    "packed": ("packed-gradients-float32", "packed.backward"),
    "paged": ("paged-gradients-float32", "paged.backward"),
    "rope": ("rope-gradient-float32", "rope.gradient"),
    "quantised": ("quantised-gradient-float32", "quantised.backward"),
    "latent_expanded": ("latent-gradients-float32", "latent.gradient"),
    "relative_bias": ("relative-bias-gradient-float32", "relative-bias.gradient"),
    "context_parallel": ("context-parallel-gradients-float32", "context-parallel.backward"),
}


class Raises(torch.autograd.Function):
    """What goes in comes out; its backward raises."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such kernel")


@pytest.mark.parametrize("name", CASES)
def test_a_backward_that_raises_is_told_by_the_rule_of_the_gradients(name: str) -> None:
    honest = runpy.run_path(str(FORMS_FOLDER / f"{name}.py"))["target"]

    def target(*arguments: Any, **options: Any) -> Any:
        returned = honest(*arguments, **options)
        return (
            Raises.apply(returned) if isinstance(returned, torch.Tensor) else (Raises.apply(returned[0]), *returned[1:])
        )

    case, rule = CASES[name]
    held = hold_case(target, load_form(case))
    assert (held.rule, held.what) == (rule, "raised RuntimeError: no such kernel")
    assert rule in held.rules
