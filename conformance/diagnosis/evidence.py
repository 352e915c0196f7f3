"""Evidence: a call, what the kernel made of it, and how far an honest kernel, or a mistaken one, might be off."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch

from attnspec.conformance.budget import Budget, arithmetic_of
from attnspec.conformance.comparison import Comparison, compare
from attnspec.conformance.diagnosis.mistake import RIGHT, Mistake, Numbers
from attnspec.conformance.diagnosis.recorder import Answer
from attnspec.conformance.diagnosis.steps import Trace, attend
from attnspec.conformance.row_errors import lse_error, output_error
from attnspec.conformance.rows import Rows, score_ties
from attnspec.reference import softcap as caps
from attnspec.spec.call import Call, Result
from attnspec.spec.dtypes import FLOAT32, FLOAT64, Format, format_of

if TYPE_CHECKING:
    from attnspec.conformance.diagnosis.fit import Fit

LARGEST = 2**20  # elements of all scores or all keys of a call: beyond, the catalogue takes too long
SLACK = 2.0  # budgets that a mistaken result may be off: the budget was derived for right ones
LSE_STORE = 4  # unit roundoffs of the lse's own format, whatever number it holds


@dataclass(frozen=True)
class Prediction:
    """What a mistake makes of a call. numbers: what the kernel would give; allowed: how far one that makes the mistake
    may be off."""

    numbers: Numbers
    allowed: Callable[[], Numbers]


@dataclass(frozen=True)
class Evidence(ABC):
    """A call and what a kernel gave. corner: where its right triangle is aligned; accuracy: the kernel's class; judged:
    what the predictions so far have come to, since many forms of a mistake predict the same."""

    call: Call
    answer: Answer
    corner: str
    accuracy: str
    judged: list[tuple[Numbers, bool, Fit]] = field(default_factory=list, compare=False)
    share: ClassVar[float] = 1.0  # of the elements, which a mistake must reproduce

    @property
    @abstractmethod
    def found(self) -> dict[str, Comparison]:
        """What the kernel gave, by name, compared with the truth."""

    @property
    @abstractmethod
    def formats(self) -> dict[str, Format]:
        """The formats, by name, beyond which what the kernel gives overflows."""

    @abstractmethod
    def predicted(self, mistake: Mistake) -> Prediction:
        """Return what a kernel that makes the mistake would have given. Raises NoPrediction."""

    @property
    def slack(self) -> int:
        """How many budgets an honest kernel may be off: 2 in float64, where the truth is no better, else 1."""
        return 2 if self.call.query.dtype == torch.float64 else 1

    @cached_property
    def wrong(self) -> bool:
        """Whether the kernel is off by more than an honest one may be."""
        return not all(comparison.holds for comparison in self.found.values())

    @property
    def size(self) -> int:
        """The number of scores."""
        batch, heads, q_len, _ = self.call.query.shape
        return batch * heads * q_len * self.call.key.shape[2]


class ForwardEvidence(Evidence):
    """A call and its result."""

    answer: Result

    @cached_property
    def truth(self) -> Trace:
        """What is right."""
        return attend(self.call, self.corner, RIGHT.steps)

    @cached_property
    def budget(self) -> Budget:
        """How far an honest kernel may be off."""
        return budget_of(self.truth, self.call, self.accuracy, self.slack)

    @cached_property
    def found(self) -> dict[str, Comparison]:
        """As of `Evidence`: output, and the lse where there is one."""
        output, lse = self.truth.result.output, self.truth.result.lse
        found = {"output": compare(self.answer.output, output, self.budget.output, self.formats["output"])}
        if self.answer.lse is not None and lse is not None:
            found["lse"] = compare(self.answer.lse, lse, self.budget.lse, lse_format(self.call))
        return found

    @property
    def formats(self) -> dict[str, Format]:
        """As of `Evidence`; nothing overflows to an lse of -inf."""
        return {"output": format_of(self.call.query.dtype), "lse": FLOAT64}

    def predicted(self, mistake: Mistake) -> Prediction:
        """As of `Evidence`."""
        trace = attend(self.call, self.corner, mistake.steps)
        numbers = {name: x for name in self.found if (x := getattr(trace.result, name)) is not None}

        def allowed() -> Numbers:
            budget = budget_of(trace, self.call, self.accuracy, SLACK)
            return {"output": budget.output, "lse": budget.lse}

        return Prediction(numbers, allowed)


def lse_format(call: Call) -> Format:
    """The format of the lse of a call."""
    return FLOAT64 if call.query.dtype == torch.float64 else FLOAT32


def usable(call: Call) -> bool:
    """Whether a call can tell mistakes apart: not empty, not huge, and finite, since NaN hides everything."""
    tensors = (call.query, call.key, call.value)
    if any(x.numel() == 0 or x.numel() > LARGEST for x in tensors):
        return False
    if call.query.shape[:3].numel() * call.key.shape[2] > LARGEST:
        return False
    flows = (call.grad_output, call.grad_lse)
    return all(bool(x.isfinite().all()) for x in (*tensors, *flows) if x is not None)


def budget_of(trace: Trace, call: Call, accuracy: str, slack: float) -> Budget:
    """Return `slack` times the error budget of a kernel that takes these steps, right or wrong ones, on this call.

    The weights need not sum to 1: the budget is that of the normalised ones, times their sum. Chapter "accuracy".
    """
    batch, heads, q_len, _ = trace.weights.shape
    total = trace.weights.nan_to_num(0.0).sum(-1, keepdim=True)  # (batch, q_heads, q_len, 1)
    rows = rows_of(trace, call, accuracy, total)
    ties = score_ties(rows)
    output = output_error(rows, ties).reshape(batch, heads, q_len, -1) * total.clamp_min(1.0)
    stored = LSE_STORE * lse_format(call).unit_roundoff
    lse = lse_error(rows, ties).reshape(batch, heads, q_len)
    if trace.result.lse is not None:
        lse = lse + stored * trace.result.lse.nan_to_num(0.0, 0.0, 0.0).abs() * (slack > 1)
    return Budget(slack * output.nan_to_num(0.0), slack * lse.nan_to_num(0.0))


def rows_of(trace: Trace, call: Call, accuracy: str, total: torch.Tensor) -> Rows:
    """Return all rows of all heads as one block; total: sum of the weights, (batch, q_heads, q_len, 1)."""
    p = torch.where(total > 0, trace.weights.nan_to_num(0.0) / total.clamp_min(1e-300), 0.0).flatten(0, 1)
    seen = trace.visible.flatten(0, 1)
    s, y, z = (
        torch.where(seen, x.flatten(0, 1).nan_to_num(0.0, 0.0, 0.0), 0.0)
        for x in (trace.scaled, trace.capped, trace.biased)
    )
    top = torch.where(seen, z, -torch.inf).amax(-1, keepdim=True)
    query, key, value = (x.flatten(0, 1) for x in (trace.query, trace.key, trace.value))
    v = torch.where((p > 0).any(-2)[..., None], value, 0.0)
    unit = v.abs().amax((-1, -2), keepdim=True)
    unit = torch.where(unit > 0, unit, 1.0)
    log_sum = torch.zeros_like(top) if trace.result.lse is None else trace.result.lse.flatten(0, 1)[..., None]
    return Rows(
        s=s,
        y=y,
        slope=caps.slope(s, call.softcap) if call.softcap else torch.ones(()).double(),
        z=z,
        p=p,
        v=v / unit,
        o=p @ (v / unit),
        norm=torch.where(seen, abs(trace.scale) * torch.sqrt(query**2 @ (key**2).transpose(-1, -2)), 0.0).nan_to_num(),
        unit=unit,
        top=torch.where(top == -torch.inf, 0.0, top),
        lse=torch.where(seen.any(-1, keepdim=True), log_sum, 0.0).nan_to_num(0.0, 0.0, 0.0),
        count=(p > 0).sum(-1, keepdim=True, dtype=torch.float64),
        biased=call.attn_mask is not None and call.attn_mask.dtype != torch.bool,
        scale=trace.scale,
        head_dim=call.query.shape[-1],
        arithmetic=arithmetic_of(format_of(call.query.dtype), accuracy),
        softcap=call.softcap or 0.0,
    )
