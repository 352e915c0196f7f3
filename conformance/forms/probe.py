"""What a target of a form must do that needs no vector: refuse a call, let a NaN through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.forms.target import Target, need
from attnspec.conformance.kernel import said
from attnspec.conformance.outcome import Violation


@dataclass(frozen=True)
class Probe:
    """A call without a vector. name: a slug; rule: the id that it enforces; shows: what it is, for a reader; hold:
    raises Violation where the target does otherwise, NotSupported where its signature lacks a word."""

    name: str
    rule: str
    shows: str
    hold: Callable[[Target], None]


def refusal(name: str, rule: str, shows: str, arguments: Callable[[], tuple[Any, ...]], **options: Any) -> Probe:
    """Return the probe of a call that must raise: any exception is a refusal, NotImplementedError too.

    arguments: makes the positional ones; options: the others, words that the signature must have.
    """

    def hold(target: Target) -> None:
        need(target, options)
        try:
            with torch.no_grad():
                returned = target(*arguments(), **options)
        except Exception:
            return
        raise Violation(rule, f"{shows}: {said(returned)} came back, where an exception is right")

    return Probe(name, rule, shows, hold)
