"""Form `merge`: a function `(outputs, lses)` that returns (output, lse), and the budget of a merge (chapter
"accuracy", "Budgets of the forms")."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attnspec.conformance.budget import arithmetic_of
from attnspec.conformance.forms.target import Target, Tensors, named, ran
from attnspec.golden.store import FormGolden
from attnspec.spec.dtypes import format_of

RULE = "accuracy.merge-within-budget"
AXES: dict[str, tuple[str, ...]] = {"output": ("batch", "head", "row", "column"), "lse": ("batch", "head", "row")}


def run(target: Target, golden: FormGolden) -> Tensors:
    """Call `target(outputs, lses)` and return output and lse.

    outputs: (parts, batch, heads, q_len, value_dim); lses: (parts, batch, heads, q_len). Raises NotSupported where it
    refuses by NotImplementedError, Violation where it raises anything else or returns something else.
    """
    inputs = golden.inputs
    with torch.no_grad():
        returned = ran(RULE, target, inputs["outputs"], inputs["lses"])
    return named(returned, ("output", "lse"), RULE, required=2)


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return the budget of each element of output and lse, float64. Raises InputError for an unknown class."""
    return merge_budget(golden.inputs["outputs"], golden.inputs["lses"], accuracy)


@dataclass(frozen=True)
class _Parts:
    """The parts of every row. o: (parts, ..., value_dim), 0 where empty; z: (parts, ...) lse, 0 where empty; p: (parts,
    ...) their shares, 0 where empty; top, lse: (...), 0 where all are empty."""

    o: torch.Tensor
    z: torch.Tensor
    p: torch.Tensor
    top: torch.Tensor
    lse: torch.Tensor
    sees: torch.Tensor


def merge_budget(outputs: torch.Tensor, lses: torch.Tensor, accuracy: str = "fused") -> Tensors:
    """Return how far a merge may be off, output (batch, heads, q_len, value_dim) and lse (batch, heads, q_len).

    outputs, lses: as in `run`, in any dtype of the spec; the results are stored in that of `outputs`, the lse in that
    of `lses`. The bound is deterministic. Rule: `accuracy.merge-within-budget`.
    """
    a = arithmetic_of(format_of(outputs.dtype), accuracy)
    rows = _parts(outputs, lses)
    steps = max(len(outputs) - 1, 1)
    merged = (rows.p[..., None] * rows.o).sum(0)  # (..., value_dim)
    mass = (rows.p[..., None] * rows.o.abs()).sum(0)
    below = (rows.z - rows.top).abs() * rows.sees  # (parts, ...)
    of_weight = 3 * below + rows.z.abs() + 4
    apart = ((rows.p * of_weight)[..., None] * (rows.o - merged).abs()).sum(0)
    error = steps * a.work * (apart + (rows.lse.abs() + 8)[..., None] * merged.abs() + 2 * mass)
    error = error + a.flushed * (1 + rows.o.abs().sum(0))
    seen = rows.sees.any(0)
    of_log = 2 * rows.lse.abs() + 2 * rows.top.abs() + 3 * (rows.p * below).sum(0) + 4 * (rows.lse - rows.top) + 8
    lse = steps * a.work * of_log + a.flushed
    return {
        "output": torch.where(seen[..., None], error + a.output * (merged.abs() + error) + a.tiny, 0.0),
        "lse": torch.where(seen, lse, 0.0),
    }


def _parts(outputs: torch.Tensor, lses: torch.Tensor) -> _Parts:
    sees = lses != -torch.inf
    z = torch.where(sees, lses.double(), -torch.inf)
    seen = sees.any(0)
    lse = torch.where(seen, torch.logsumexp(z, 0), 0.0)
    return _Parts(
        o=torch.where(sees[..., None], outputs.double(), 0.0),
        z=torch.where(sees, z, 0.0),
        p=torch.where(sees, torch.exp(z - lse), 0.0),
        top=torch.where(seen, z.amax(0), 0.0),
        lse=lse,
        sees=sees,
    )
