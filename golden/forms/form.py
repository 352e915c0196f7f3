"""What a golden case of another form than attention is: a problem with one string, and the tensors that follow from it.

A problem is a frozen dataclass whose fields are the words of its string, such as `parts=3/q=5/gap=90/seed=2`; what it
does not mention has its default. `parse` reads it, `str` writes it, and the two are inverse.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy.typing as npt
import torch

from attnspec.golden.shapes import Shapes
from attnspec.spec.dtypes import format_named
from attnspec.spec.errors import InputError

Tensors = dict[str, torch.Tensor]
Arrays = dict[str, npt.NDArray[Any]]

LARGEST_SIZE = 4096
LARGEST = {"seed": 2**63 - 1, "first": 2**20, "shift": 2**20}  # by word; of every other, LARGEST_SIZE


class FormProblem(ABC):
    """A problem of a form. form: its name; truths: the names of the true tensors; leading: the input whose dtype the
    results have, "" where they are compared as numbers of any dtype."""

    form: ClassVar[str]
    truths: ClassVar[tuple[str, ...]]
    leading: ClassVar[str] = "query"

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self:
        """Read a problem's string. Raises InputError that names the word at fault."""

    @abstractmethod
    def __str__(self) -> str: ...

    @abstractmethod
    def shapes(self) -> Shapes:
        """Return the dtype and shape of every stored tensor, by name."""

    @abstractmethod
    def inputs(self) -> Tensors:
        """Return what goes in, the same bits on every machine."""

    @abstractmethod
    def truth(self, inputs: Tensors) -> Arrays:
        """Return the true results for the inputs, each rounded once to float64, by the exact oracle."""

    @abstractmethod
    def rules(self) -> tuple[str, ...]:
        """Return the ids of the rules that decide the answer."""

    def work(self) -> int:
        """Return a number that grows with the time the truth takes."""
        sizes = [shape for _, shape in self.shapes().values()]
        return max(_product(shape) for shape in sizes)


@dataclass(frozen=True)
class WordProblem(FormProblem):
    """A problem whose fields, each with a default, are the words of its string: a number or a word after `=`, or for a
    bool the word alone."""

    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise InputError for sizes and names that no case has."""
        format_named(self.dtype)
        for field in fields(self):
            value = getattr(self, field.name)
            largest = LARGEST.get(field.name, LARGEST_SIZE)
            if type(field.default) is int and not 0 <= value <= largest:
                raise InputError(f"{field.name} is {value}: use 0 to {largest}")
        self.check()

    def check(self) -> None:
        """Raise InputError where the words do not fit together."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a problem's string. Raises InputError that names the word at fault."""
        defaults: dict[str, Any] = {word.name: word.default for word in fields(cls)}
        given: dict[str, Any] = {}
        for said in text.split("/"):
            name, equals, value = said.partition("=")
            if name not in defaults or name in given:
                raise InputError(f"word {said!r} in {text!r} is unknown or stands twice: use {', '.join(defaults)}")
            kind = type(defaults[name])
            try:
                given[name] = True if kind is bool and not equals else kind(value)
            except ValueError:
                raise InputError(f"word {said!r} in {text!r} has no readable value") from None
        return cls(**given)

    def __str__(self) -> str:
        said = []
        for word in sorted(fields(self), key=lambda word: word.name in ("dtype", "seed")):  # these two come last
            value = getattr(self, word.name)
            if value != word.default:
                number = f"{value:g}" if isinstance(value, float) else value
                said.append(word.name if value is True else f"{word.name}={number}")
        return "/".join(said)


@dataclass(frozen=True)
class FormCase:
    """A stored case of another form than attention. name: a slug, permanent; rules: ids of the rules that it puts to
    the test, sorted; note: what it shows, for a reader."""

    name: str
    problem: FormProblem
    rules: tuple[str, ...]
    note: str

    @property
    def form(self) -> str:
        """The form's name."""
        return self.problem.form


def lse_dtype(dtype: str) -> str:
    """The dtype of an lse beside tensors of a dtype: float64 for float64, else float32."""
    return "float64" if dtype == "float64" else "float32"


def gradient_shapes(shapes: Shapes, dtype: str, leaves: Collection[str], grad: str) -> Shapes:
    """Return dtype and shape of what flows back, and of the true gradients of the leaves, by name; nothing without.

    shapes: of the inputs, output and lse; dtype: of the problem; grad: through what gradients flow back, `output`, or
    `lse` for both; "" is none.
    """
    if not grad:
        return {}
    found: Shapes = {"grad_output": (dtype, shapes["output"][1])}
    found |= {f"grad_{name}": ("float64", shapes[name][1]) for name in leaves}
    return found | ({"grad_lse": (lse_dtype(dtype), shapes["lse"][1])} if grad == "lse" else {})


def numbers(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return a tensor's numbers, exactly: bool and integers as they are, floats as float64."""
    array: npt.NDArray[Any] = (tensor.double() if tensor.dtype.is_floating_point else tensor).numpy()
    return array


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
